#!/usr/bin/env python3
"""Files in and out of jobs on a `nodekeeper local`: what a job gets, what it leaves, and what bad input says.

S3 is our own stand-in. Then the parts that use S3 in other ways run once more, with moto as S3, which nobody here wrote.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import subprocess
import tempfile
import time

import boto3
from local_stack import PROGRAM, ROOT, Local, check, moto, wait_until

PYTHON = ROOT / "target/venv/bin/python"
HELLO = "import sys, pathlib; print('hello', *sys.argv[1:], pathlib.Path('data/table.csv').read_text().strip())\n"
BOTO3 = """
import boto3
boto3.client('s3').put_object(Bucket='local', Key='mine/in.txt', Body=b'from s3')
"""


class User:
    """Somebody with files, who uses the cluster from the folder with them."""

    def __init__(self, local, folder):
        self.local, self.folder = local, pathlib.Path(folder)

    def write(self, name, text, mode=0o644):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    def read(self, name):
        return (self.folder / name).read_text()

    def run(self, *line):
        return subprocess.run([PROGRAM, *line], env=self.local.environment(), cwd=self.folder, capture_output=True, text=True, check=False)

    def completes(self, what, wanted, *line):
        ran = self.run("run", "--quiet", *line)
        check(what, ran.returncode == 0 and ran.stdout == wanted, (ran.returncode, ran.stdout, ran.stderr))

    def fails(self, what, said, *line):
        ran = self.run(*line)
        check(what, ran.returncode != 0 and said in ran.stderr, (ran.returncode, ran.stdout, ran.stderr))

    def s3(self):
        env = self.local.environment()
        keys = {name.lower(): env[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        return boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL_S3"], region_name=env["AWS_REGION"], **keys)

    def stored(self):
        """The digests of what is stored by its content."""
        found = self.s3().list_objects_v2(Bucket="local", Prefix="local/files/").get("Contents", [])
        return sorted(one["Key"].rpartition("/")[2] for one in found)

    def stored_at(self, key):
        return self.s3().get_object(Bucket="local", Key=key)["Body"].read()


def files_in(user):
    user.write("hello.py", HELLO)
    user.write("data/table.csv", "1,2\n")
    ran = user.run("run", "--", "python3", "hello.py")
    said = "the job does not get hello.py, which is a file here: add --in hello.py"
    check("a forgotten file is told in one line", ran.returncode != 0 and said in ran.stderr, ran.stderr)
    files = ["--in", "hello.py", "--in", "data/table.csv"]
    user.completes("a program gets its files and its arguments", "hello you 1,2\n", *files, "--", "python3", "hello.py", "you")
    before = user.stored()
    digests = sorted(hashlib.sha256((user.folder / name).read_bytes()).hexdigest() for name in ("hello.py", "data/table.csv"))
    check("each content is stored by its digest", before == digests, before)
    user.completes("the same content is not stored again", "hello me 1,2\n", *files, "--", "python3", "hello.py", "me")
    check("nothing was added", user.stored() == before)
    user.write("run.sh", "#!/bin/sh\necho ran\n", 0o755)
    user.completes("a program stays executable, and gets another name", "ran\n", "--in", "run.sh=bin/go", "--", "./bin/go")
    user.completes("a folder comes whole", "1,2\n", "--in", "data", "--", "cat", "data/table.csv")
    user.completes("files of the job are its own", "more\n", "--in", "data", "--", "sh", "-c", "echo more > data/table.csv; cat data/table.csv")
    user.write("app/main.py", "import lib; print(lib.NAME)\n")
    user.write("app/lib.py", "NAME = 'lib'\n")
    user.write("app/.gitignore", "*.log\n")
    user.write("app/x.log", "")
    user.completes("a folder is the work directory, without what is ignored", "lib\n.gitignore lib.py main.py\n", "--workdir", "app",
                   "--", "sh", "-c", "PYTHONDONTWRITEBYTECODE=1 python3 main.py; echo $(ls -A)")


def bad_inputs(user):
    user.fails("a file that is not there", "no-such-file cannot be read", "run", "--in", "no-such-file", "--", "true")
    user.fails("a work directory that is not there", "no-such-folder cannot be read: No such file", "run", "--workdir", "no-such-folder", "--", "true")
    user.fails("a name that leads out", "must be relative to the work directory", "submit", "--in", "hello.py=../x", "--", "true")
    user.fails("an object without a role", "give --role NAME", "submit", "--in", "s3://local/x", "--", "true")
    user.fails("two inputs with one name", "two inputs have the name hello.py", "submit", "--in", "hello.py", "--in", "data/table.csv=hello.py", "--", "true")
    user.fails("a place inside of a file", 'the input "sub/x" is inside of the input "sub", which is a file', "submit", "--in", "hello.py=sub/x",
               "--in", "hello.py=sub", "--", "true")
    user.fails("a place inside of a file of a folder", "sub/f is inside of sub/table.csv, which is a file".replace("sub/f", "sub/table.csv/f"), "submit",
               "--in", "hello.py=sub/table.csv/f", "--in", "data=sub", "--", "true")
    user.fails("an object that is not there", "the input x cannot be read", "run", "--role", "local-job", "--in", "s3://local/no/x", "--", "true")
    digest = "0" * 64
    user.write("jobs.jsonl", json.dumps({"command": ["true"], "name": "gone", "inputs": {"x": f"file:{digest}:7"}}) + "\n")
    ran = user.run("submit", "--file", "jobs.jsonl", "--wait")
    job = json.loads(user.run("job", "gone", "--json").stdout)
    check("a content that is gone is no failure of the command", ran.returncode == 1 and job["cause"]["kind"] == "rejected", job)


def files_out(user):
    line = "mkdir -p r/deep; echo one > r/deep/f; echo two > t.txt; ln -s deep/f r/link"
    kept = user.run("submit", "--name", "made", "--wait", "--out", "r", "--out", "t.txt", "--", "sh", "-c", line)
    check("a job with outputs is complete", kept.returncode == 0, kept.stderr)
    job = json.loads(user.run("job", "made", "--json").stdout)
    (alloc,) = job["all_allocs"]
    check("the alloc has the digest of each", [o["path"] for o in alloc["kept"]] == ["r", "t.txt"], alloc)
    digest = hashlib.sha256(b"two\n").hexdigest()
    check("which is right", alloc["kept"][1]["content"] == f"file:{digest}:4", alloc["kept"])
    got = user.run("fetch", "made", ".", "got")
    check("fetch gets all of it", got.returncode == 0 and user.read("got/t.txt") == "two\n" and user.read("got/r/link") == "one\n", got.stderr)
    user.write("got/t.txt", "mine")
    user.fails("fetch replaces no other file", "is here and is another file", "fetch", "made", "t.txt", "got")
    check("unless one forces it", user.run("fetch", "--force", "made", "t.txt", "got").returncode == 0 and user.read("got/t.txt") == "two\n")
    user.fails("an output that the job does not keep", "has stored no x", "fetch", "made", "x")
    user.fails("a job that keeps nothing", "keeps nothing", "fetch", "gone")
    ran = user.run("run", "--out", "no.txt", "--", "true")
    check("an output that was not made fails the job", 'its output "no.txt" cannot be kept: it is not there' in ran.stderr and ran.returncode == 125, ran)
    line = "ln -s /etc/passwd out; mkfifo pipe"
    ran = user.run("run", "--out", "out", "--", "sh", "-c", line)
    check("no link out of the work directory is followed", "a link out of the work directory" in ran.stderr, ran.stderr)
    ran = user.run("run", "--out", "pipe", "--", "sh", "-c", line)
    check("a pipe is no output", "neither a file nor a folder" in ran.stderr, ran.stderr)
    line = "mkdir d; mkfifo d/pipe; echo x > d/f; echo printed"
    ran = user.run("run", "--quiet", "--name", "piped", "--out", "d", "--", "sh", "-c", line)
    said = "nodekeeper: the output d is kept without its pipes, sockets and devices: pipe\n"
    check("a pipe in a folder is left out, and the job's standard error says so",
          (ran.returncode, ran.stdout, ran.stderr) == (0, "printed\n", said), ran)
    check("with the rest of the folder", user.run("fetch", "piped", "d", "piped").returncode == 0 and user.read("piped/d/f") == "x\n")
    line = "mkdir r; echo 1 > r/a.csv; echo 2 > r/b.csv; echo no > r/c.txt; echo last > last; ln -s last best"
    outputs = ["--out", "r/*.csv", "--out", "best"]
    kept = user.run("submit", "--name", "many", "--wait", *outputs, "--", "sh", "-c", line)
    got = user.run("fetch", "many", ".", "many")
    names = sorted(str(path.relative_to(user.folder / "many")) for path in (user.folder / "many").rglob("*") if path.is_file())
    check("a pattern keeps what it names under its own names, and a link is followed",
          (kept.returncode, got.returncode, names, user.read("many/best")) == (0, 0, ["best", "r/a.csv", "r/b.csv"], "last\n"), (kept, got, names))
    outputs = ["--out", "r/*.csv", "--out", "r/a.csv", "--out", "r", "--out", "l*", "--out", "*st"]
    user.run("submit", "--name", "twice", "--wait", *outputs, "--", "sh", "-c", line)
    got = [user.run("fetch", "twice", ".", "twice").returncode for _ in range(2)]
    check("outputs may lie in each other, and what was here before is not replaced",
          got == [0, 1] and user.read("twice/r/a.csv") == "1\n" and user.read("twice/last") == "last\n", got)
    user.completes("another job gets what a pattern named", "1\n2\n", "--in", "job:many/r/*.csv", "--", "sh", "-c", "cat r/*.csv")
    ran = user.run("run", "--name", "some", "--out", "no", "--out", "*.none", "--out", "last", "--", "sh", "-c", line)
    said = 'its output "*.none" cannot be kept: nothing in the work directory has such a name; nor can "no": it is not there'
    check("each output that is missing is named", said in ran.stderr, ran.stderr)
    got = user.run("fetch", "some", ".", "some")
    check("and what is there is kept, and fetch names what is not",
          got.returncode == 1 and "has not stored no" in got.stderr and "has not stored *.none" in got.stderr
          and user.read("some/last") == "last\n", got)
    user.run("submit", "--name", "broke", "--wait", "--keep", "logs", "--", "sh", "-c", "echo why > logs/log; exit 3")
    check("what a failed job kept can be fetched", user.run("fetch", "broke").returncode == 0 and user.read("logs/log") == "why\n")


def times(user):
    """What is unpacked is newer than what an earlier job built in a cache, and what is fetched is newer than what it was made of."""
    user.write("src/Makefile", "prog: main.c\n\tcp $< $@ && chmod 666 $@\n")
    line = "make -s -f $PWD/Makefile -C $NODEKEEPER_CACHE_BUILD VPATH=$PWD; cat $NODEKEEPER_CACHE_BUILD/prog"
    for source in ("one\n", "two\n"):
        user.write("src/main.c", source)
        user.completes("a build in a cache uses the new source", source, "--workdir", "src", "--cache", "build", "--", "sh", "-c", line)
    line = "[ $(find . -type f -newer one | wc -l) = 0 ] && [ $(find . -type f ! -newer one | wc -l) = 3 ] && date -r one +%Y"
    year = time.strftime("%Y", time.gmtime()) + "\n"
    user.completes("files and folders are equally old", year, "--in", "src", "--in", "src/main.c=one", "--", "sh", "-c", line)
    made = "mkdir d; cp src/main.c d/f; cp src/main.c f; touch -d 2001-01-01 f d/f"
    user.run("submit", "--name", "made-of", "--wait", "--in", "src", "--out", "f", "--out", "d", "--", "sh", "-c", made)
    user.run("fetch", "made-of", ".", "built")
    source, now = (user.folder / "src/main.c").stat().st_mtime, time.time()
    found = {name: (user.folder / "built" / name).stat().st_mtime for name in ("f", "d", "d/f")}
    check("what is fetched is as old as the end of its job", len(set(found.values())) == 1 and source < found["f"] < now, (source, found))


def links_that_are_here(user):
    """An earlier fetch may have left links. Nothing is written through them."""
    outside = user.folder / "outside"
    outside.mkdir()
    made = f"mkdir -p d; ln -s {outside} d/ssh; ln -s {outside} f"
    user.run("submit", "--name", "left", "--wait", "--out", "d", "--", "sh", "-c", made)
    check("a folder with a link comes", user.run("fetch", "left", ".", "two").returncode == 0 and (user.folder / "two/d/ssh").is_symlink())
    user.run("submit", "--name", "evil", "--wait", "--out", "d/ssh/keys", "--out", "d", "--", "sh", "-c", "mkdir -p d/ssh; echo evil > d/ssh/keys")
    for line in (["d/ssh/keys"], ["d/ssh/keys", "two", "--force"]):
        ran = user.run("fetch", "evil", *line[:1], "two", *line[2:])
        check("a link on the way is refused", ran.returncode == 1 and "ssh is a link, which is not followed" in ran.stderr, ran)
    ran = user.run("fetch", "evil", "d", "two", "--force")
    check("a link in its place is replaced", ran.returncode == 0 and user.read("two/d/ssh/keys") == "evil\n", ran)
    check("nothing is outside", list(outside.iterdir()) == [], list(outside.iterdir()))


def own_excludes(user):
    """What a person excludes everywhere is not stored either, and neither is what a folder above the work directory ignores."""
    user.write("config/git/ignore", "*.secret\n/jobs/by-root\n")
    user.write("repo/.gitignore", ".env\n")
    for name in (".env", "a.secret", "b", "by-root"):
        user.write(f"repo/jobs/{name}", "")
    subprocess.run(["git", "init", "-q", "repo"], cwd=user.folder, check=True)
    os.environ["XDG_CONFIG_HOME"] = str(user.folder / "config")
    try:
        user.completes("nothing of it is in the job", "b\n", "--workdir", "repo/jobs", "--", "ls", "-A")
    finally:
        del os.environ["XDG_CONFIG_HOME"]


def followers(user):
    user.run("submit", "--name", "first", "--out", "f", "--", "sh", "-c", "sleep 2; echo from the first > f")
    user.completes("a follower starts with what the job before it left", "from the first\n", "--in", "job:first/f=in.txt", "--", "cat", "in.txt")
    user.fails("an output that the other job does not keep", "keeps no x: it keeps f", "submit", "--in", "job:first/x", "--", "true")
    one = user.run("submit", "--name", "empty", "--out", "f", "--", "sleep", "5")
    check("the job before is submitted", one.returncode == 0, one.stderr)
    ran = user.run("run", "--in", "job:empty/f", "--", "cat", "f")
    check("a follower never starts without its input", ran.returncode == 125 and "rejected" in ran.stderr, ran.stderr)


def own_places(user):
    """With the role of the job. boto3 reads what a job stored, and stores what a job reads."""
    user.write("put.py", BOTO3)
    ran = user.run("run", "--role", "local-job", "--in", "put.py", "--", str(PYTHON), "put.py")
    check("boto3 in a job stores an object", ran.returncode == 0, ran.stderr)
    user.completes("a job reads an object with its role", "from s3", "--role", "local-job", "--in", "s3://local/mine/in.txt", "--", "cat", "in.txt")
    line = "mkdir d; echo a > d/a; echo b > b"
    ran = user.run("run", "--role", "local-job", "--out", "b=s3://local/mine/b", "--out", "d=s3://local/mine/d", "--", "sh", "-c", line)
    check("a job stores at places of its own", ran.returncode == 0, ran.stderr)
    check("a file and each file of a folder", (user.stored_at("mine/b"), user.stored_at("mine/d/a")) == (b"b\n", b"a\n"))


def in_parts(user):
    """20 MB, which are stored in three parts, in and out, and names that a URL writes in another way."""
    user.write("large", "0123456789" * 2_000_000)
    digest = hashlib.sha256((user.folder / "large").read_bytes()).hexdigest()
    line = "tr 0123456789 1234567890 <large | tee again >'mine &.txt'; sha256sum large"
    place = "mine &.txt=s3://local/mine/a b&c+d=ü.txt"
    user.completes("a large file comes whole", f"{digest}  large\n", "--name", "large", "--role", "local-job", "--in", "large", "--out", "again",
                   "--out", place, "--", "sh", "-c", line)
    wanted = user.read("large").translate(str.maketrans("0123456789", "1234567890"))
    got = user.run("fetch", "large", "again", "large-out")
    check("and so does a large output", got.returncode == 0 and user.read("large-out/again") == wanted, got)
    check("also at a place of the job's own", user.stored_at("mine/a b&c+d=ü.txt").decode() == wanted)


@contextlib.contextmanager
def moto_as_s3():
    """moto as S3 of all that is started in the block."""
    with moto() as url:
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        boto3.client("s3", endpoint_url=url, **keys).create_bucket(Bucket="local")
        os.environ["AWS_ENDPOINT_URL_S3"] = url
        try:
            yield
        finally:
            del os.environ["AWS_ENDPOINT_URL_S3"]


def is_fetched_once(user):
    """A node fetches a content once for all jobs that want it."""
    user.write("big", "x" * 1_000_000)
    ran = user.run("submit", "--count", "4", "--wait", "--in", "big", "--", "sha256sum", "big")
    check("four jobs share an input", ran.returncode == 0, ran.stderr)
    digest = hashlib.sha256(b"x" * 1_000_000).hexdigest()
    machines = pathlib.Path(user.local.dir.name, "stack/machines")
    cached = wait_until("the nodes have it", lambda: list(machines.glob(f"*/data/inputs/{digest}")))
    check("whole, and once for each node", all(path.stat().st_size == 1_000_000 for path in cached), cached)


@contextlib.contextmanager
def small_disk(folder):
    """A disk of 48 MiB for the machines."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m,mode=755", "small", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def full_disk(user):
    """A job whose own files fill the disk runs once. Its exit code counts, and what it printed last is there."""
    if os.geteuid() != 0:
        return
    fill = "dd if=/dev/zero of=big bs=1M count=100; exit 7"
    machines = pathlib.Path(user.local.dir.name) / "stack/machines"
    machines.mkdir(exist_ok=True)
    with small_disk(machines):
        for name, options in (("fills", []), ("pack-that-fills", ["--count", "1", "--pack", "1"])):
            user.run("submit", "--wait", "--name", name, *options, "--", "sh", "-c", fill)
            job = json.loads(user.run("job", name, "--json").stdout)
            printed = user.run("logs", name)
            check(f"{name}: it runs once, and fails by itself", [a["client"] for a in job["all_allocs"]] == ["failed"], job)
            check(f"{name}: its last words are there", "No space left" in printed.stdout + printed.stderr, printed)
        keep = "[ -s k/x ] && exec cksum k/x; head -c 25000000 /dev/zero > k/x; exit 3"
        kept = user.run("run", "--name", "keeps", "--keep", "k", "--retry", "exit:3=again*2,pause=1s", "--", "sh", "-c", keep)
        check("a checkpoint of more than half of the disk comes back", kept.returncode == 0 and "25000000" in kept.stdout, kept)
        user.run("run", "--name", "caches", "--cache", "c", "--", "sh", "-c", "head -c 60000000 /dev/zero > $NODEKEEPER_CACHE_C/x || true")
        user.write("in10", "x" * 10_000_000)
        user.completes("an unused cache makes room for what comes next", "10000000\n", "--in", "in10", "--", "sh", "-c", "wc -c < in10")


def main():
    with Local("--tick-s", "1") as local, tempfile.TemporaryDirectory() as folder:
        user = User(local, folder)
        files_in(user)
        bad_inputs(user)
        files_out(user)
        times(user)
        links_that_are_here(user)
        own_excludes(user)
        followers(user)
        is_fetched_once(user)
    with Local("--tick-s", "1") as local, tempfile.TemporaryDirectory() as folder:
        full_disk(User(local, folder))
    for s3 in (contextlib.nullcontext, moto_as_s3):
        # Isolated jobs may not reach the Python environment of the tests.
        with s3(), Local("--tick-s", "1", "--unisolated") as local, tempfile.TemporaryDirectory() as folder:
            user = User(local, folder)
            own_places(user)
            in_parts(user)


if __name__ == "__main__":
    main()
