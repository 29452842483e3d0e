"""Runs on a node, as the main program of the archive that `functions.pack` makes: calls a function, and writes what it returns."""

import sys
import zipfile


def main() -> None:
    archive, wanted, argument, result = sys.argv
    here = "{}.{}".format(*sys.version_info)
    if here != wanted:
        sys.exit(f"this node runs Python {here}, and the function was made by Python {wanted}: give map(python=…), or an image that has it")
    # The archive has cloudpickle too, so that the node needs nothing but Python.
    import cloudpickle

    with zipfile.ZipFile(archive) as files:
        function = cloudpickle.loads(files.read("function"))
    with open(argument, "rb") as file:
        value = cloudpickle.load(file)
    try:
        returned = cloudpickle.dumps(function(value))
    except SystemExit as end:
        # A success without a value would be none for the caller.
        sys.exit(end.code or "the function called sys.exit, so it returned no value")
    # Only now: a result that is there is whole, also when the function ends the process.
    with open(result, "wb") as file:
        file.write(returned)


if __name__ == "__main__":
    main()
