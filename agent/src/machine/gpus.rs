//! The GPUs of this machine: found with `nvidia-smi`, or read from a file (`--gpus-from`).
//!
//! `nvidia-smi` comes with each driver. The agent does not load NVIDIA's library (NVML): the released agent is linked without a
//! dynamic loader, so that it also runs in an empty container, and such a program cannot load libraries.
//!
//! Guarantees: a GPU that the driver shows late is found; a GPU that is no longer found, or for which the driver reports an error, is
//! sick; the control plane hears of each change at once; no question to the driver waits longer than `TIMEOUT`; a file tells the
//! supervisors of allocs how busy each GPU was at the last look; the slices of a GPU that is split (MIG) are GPUs of their own.
//! Does not: decide which alloc gets which GPU (`protocol::gpus` does), know how many there should be (the size says it, so the control
//! plane does), repair a GPU, or split one.

use crate::contact::shared_node::SharedNode;
use crate::machine::atomic_file;
use crate::protocol::Gpu;
use crate::usage::{GpuSample, GpuSamples};
use anyhow::bail;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The longest wait for `nvidia-smi`. Without the driver's daemon it takes some seconds for each GPU.
const TIMEOUT: Duration = Duration::from_secs(60);

/// How often the driver is asked, and how often the file is read.
const ASK_EVERY: Duration = Duration::from_secs(60);
const READ_EVERY: Duration = Duration::from_secs(1);
/// How often the driver is asked while the node is not ready: GPUs may be what it lacks.
const ASK_SOON: Duration = Duration::from_secs(2);

const QUERY: &str = "--query-gpu=uuid,name,memory.total,utilization.gpu,memory.used,mig.mode.current";

/// Where the driver says which device file a GPU has.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// Why a GPU in the mode MIG that has no slices cannot be used.
const UNCUT: &str = "MIG is on and it has no slices: make some with nvidia-smi mig, or turn MIG off";

/// The most characters of the driver's messages that are passed on.
const MAX_MESSAGE: usize = 80;

/// Where the agent learns which GPUs the machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSource {
    Driver,
    /// A file, which is read again and again.
    File(PathBuf),
}

/// A GPU in the file of `--gpus-from`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuOfFile {
    uuid: String,
    #[serde(default)]
    model: String,
    #[serde(default)]
    device: Option<PathBuf>,
    #[serde(default)]
    sick: bool,
    busy_percent: Option<u64>,
    memory_mib: Option<u64>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct GpuReport {
    gpus: Vec<Gpu>,
    /// How busy they are, by uuid.
    samples: GpuSamples,
}

impl GpuSource {
    /// The source that the command line names. Fails if the file is not valid.
    pub fn of(file: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = file else { return Ok(Self::Driver) };
        match read(path) {
            Ok(_) => Ok(Self::File(path.to_owned())),
            Err(why) => {
                bail!("--gpus-from {}: {why}; it must be a list like [{{\"uuid\": \"GPU-0\"}}]", path.display())
            }
        }
    }

    /// The GPUs of this machine now, in a fixed order. `known` are those that were found before.
    async fn find(&self, known: &[Gpu]) -> GpuReport {
        let (found, why) = match self {
            Self::File(path) => match read(path) {
                Ok(found) => (found, "the file does not list it any more".to_owned()),
                Err(why) => (GpuReport::default(), format!("{}: {why}", path.display())),
            },
            Self::Driver => ask().await,
        };
        GpuReport { gpus: merged(found.gpus, known, &why), samples: found.samples }
    }

    const fn every(&self, is_ready: bool) -> Duration {
        match self {
            Self::Driver if is_ready => ASK_EVERY,
            Self::Driver => ASK_SOON,
            Self::File(_) => READ_EVERY,
        }
    }
}

/// Reads the GPUs before the first heartbeat, so that the control plane knows from the beginning how many GPUs there are.
pub async fn first(state: &SharedNode, source: &GpuSource) {
    let GpuReport { gpus, .. } = source.find(&[]).await;
    for gpu in &gpus {
        tracing::info!(uuid = gpu.uuid, model = gpu.model, device = ?gpu.device, sick = gpu.sick, "this machine has a GPU");
    }
    state.update_or_log(|node| node.gpus = gpus).await;
}

/// Reads the GPUs again and again, and reports each change to the control plane at once.
pub async fn watch(state: &SharedNode, source: &GpuSource, looks_file: &Path) {
    loop {
        tokio::time::sleep(source.every(state.read(|node| node.is_ready))).await;
        let known = state.read(|node| node.gpus.clone());
        let GpuReport { gpus, samples } = source.find(&known).await;
        if gpus.is_empty() {
            continue;
        }
        if let Err(error) = atomic_file::replace_lightly(looks_file, &samples) {
            tracing::warn!(%error, "cannot write down how busy the GPUs are");
        }
        if gpus == known {
            continue;
        }
        match crate::protocol::sick(&gpus) {
            Some(sick) => tracing::error!(sick, "GPUs cannot be used"),
            None => tracing::info!("all GPUs can be used"),
        }
        state.update_and_beat(|node| node.gpus = gpus).await;
    }
}

/// The found GPUs, and the known ones that are missing now. The missing ones are sick for the reason `why`.
fn merged(found: Vec<Gpu>, known: &[Gpu], why: &str) -> Vec<Gpu> {
    let names: BTreeSet<String> = found.iter().map(|gpu| gpu.uuid.clone()).collect();
    let missing = known.iter().filter(|gpu| !names.contains(&gpu.uuid));
    let missing: Vec<Gpu> = missing.map(|gpu| Gpu { sick: Some(why.to_owned()), ..gpu.clone() }).collect();
    found.into_iter().chain(missing).collect()
}

fn read(path: &Path) -> Result<GpuReport, String> {
    let text = std::fs::read(path).map_err(|e| e.to_string())?;
    let listed: Vec<GpuOfFile> = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    let (mut names, mut samples) = (BTreeSet::new(), GpuSamples::new());
    for GpuOfFile { uuid, busy_percent, memory_mib, .. } in &listed {
        if !is_uuid(uuid) {
            return Err(format!("{uuid:?} is no uuid: 1 to 64 letters, digits and '-'"));
        }
        if !names.insert(uuid) {
            return Err(format!("{uuid:?} is listed twice"));
        }
        samples.insert(uuid.clone(), GpuSample { busy_percent: *busy_percent, memory_mib: *memory_mib });
    }
    let gpu = |GpuOfFile { uuid, model, device, sick, .. }| {
        let sick = sick.then(|| "the file says that it is sick".to_owned());
        Gpu { uuid, model, device, sick }
    };
    Ok(GpuReport { gpus: listed.into_iter().map(gpu).collect(), samples })
}

/// Whether this names a GPU. The name reaches environments, and an option of docker.
fn is_uuid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Asks the driver. The text says why a GPU that is missing in the answer is sick.
async fn ask() -> (GpuReport, String) {
    let mut devices = devices(Path::new(DRIVER));
    let (found, why) = match nvidia_smi(&[QUERY, "--format=csv,noheader"]).await {
        Ok((text, said)) => {
            let last = text.lines().chain(said.lines()).rfind(|line| !line.trim().is_empty() && row(line).is_none());
            let why = last.map_or_else(|| "nvidia-smi does not list it any more".to_owned(), clip);
            let may_be_split = text.lines().filter_map(row).any(|row| !["Disabled", "[N/A]"].contains(&row.mig));
            let list = if may_be_split { nvidia_smi(&["-L"]).await.unwrap_or_default().0 } else { String::new() };
            let slices = slices(&list);
            let found = answered(&text, &devices, &slices);
            devices.retain(|device| !slices.contains_key(&device.uuid));
            (found, why)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return (GpuReport::default(), "there is no nvidia-smi any more".into());
        }
        Err(error) => (GpuReport::default(), format!("nvidia-smi cannot be run: {error}")),
    };
    (GpuReport { gpus: merged(found.gpus, &devices, &why), samples: found.samples }, why)
}

/// What `nvidia-smi` prints, and what it says on standard error.
async fn nvidia_smi(args: &[&str]) -> io::Result<(String, String)> {
    let mut command = Command::new("nvidia-smi");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("no answer in {} s", TIMEOUT.as_secs()));
    let output = tokio::time::timeout(TIMEOUT, command.output()).await.map_err(late)??;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(&output.stdout), text(&output.stderr)))
}

/// The GPUs that the kernel's driver lists. It lists a GPU even if the GPU does not answer.
fn devices(driver: &Path) -> Vec<Gpu> {
    let entries = std::fs::read_dir(driver).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path().join("information")).collect();
    paths.sort();
    paths.iter().filter_map(|path| device(&std::fs::read_to_string(path).ok()?)).collect()
}

fn device(information: &str) -> Option<Gpu> {
    let field = |name: &str| {
        let line = information.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'));
        line.map(str::trim)
    };
    let (uuid, minor) = (field("GPU UUID")?, field("Device Minor")?.parse::<u32>().ok()?);
    let model = clip(field("Model").unwrap_or_default());
    let device = Some(format!("/dev/nvidia{minor}").into());
    is_uuid(uuid).then(|| Gpu { uuid: uuid.to_owned(), model, device, sick: None })
}

/// A line of the answer, as [`QUERY`] asks for it.
#[derive(Clone, Copy)]
struct SmiLine<'a> {
    uuid: &'a str,
    model: &'a str,
    memory: &'a str,
    busy: &'a str,
    used: &'a str,
    /// Whether the GPU is split; empty if the driver does not say it.
    mig: &'a str,
}

fn row(line: &str) -> Option<SmiLine<'_>> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next();
    let (uuid, model, memory) = (next()?, next()?, next()?);
    let (busy, used, mig) = (next()?, next()?, next().unwrap_or_default());
    is_uuid(uuid).then_some(SmiLine { uuid, model, memory, busy, used, mig })
}

/// The slices of each split GPU, by the uuid of the GPU: their uuids and profiles, like `1g.5gb`. `list` is what `nvidia-smi -L` prints.
fn slices(list: &str) -> BTreeMap<String, Vec<(String, String)>> {
    let mut slices: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut whole = "";
    for line in list.lines().map(str::trim) {
        let uuid = line.rsplit_once("(UUID: ").map_or("", |(_, uuid)| uuid.trim_end_matches(')'));
        match line.strip_prefix("MIG ").and_then(|line| line.split_whitespace().next()) {
            Some(profile) if is_uuid(uuid) => {
                slices.entry(whole.to_owned()).or_default().push((uuid.to_owned(), profile.to_owned()));
            }
            Some(_) => {}
            None => whole = uuid,
        }
    }
    slices
}

/// The number before a unit; `None` for `[N/A]`.
fn number(field: &str) -> Option<u64> {
    field.split(' ').next()?.parse().ok()
}

/// The GPUs in the answer. A split GPU is its slices: programs and containers take the uuid of a slice as they take that of a GPU. All
/// slices of a GPU have its device file.
fn answered(text: &str, devices: &[Gpu], slices: &BTreeMap<String, Vec<(String, String)>>) -> GpuReport {
    let gpus = |SmiLine { uuid, model, memory, mig, .. }: SmiLine<'_>| {
        let errors = [model, memory].into_iter().find(|field| {
            let lower = field.to_ascii_lowercase();
            ["lost", "error", "err!"].iter().any(|word| lower.contains(word))
        });
        let device = devices.iter().find(|known| known.uuid == uuid).and_then(|known| known.device.clone());
        let whole = Gpu { uuid: uuid.to_owned(), model: clip(model), device, sick: errors.map(clip) };
        let slice = |(uuid, profile): &(String, String)| Gpu {
            uuid: uuid.clone(),
            model: clip(&format!("{model} MIG {profile}")),
            ..whole.clone()
        };
        match slices.get(uuid) {
            Some(slices) => slices.iter().map(slice).collect(),
            None if mig == "Enabled" => vec![Gpu { sick: whole.sick.or_else(|| Some(UNCUT.to_owned())), ..whole }],
            None => vec![whole],
        }
    };
    let look = |SmiLine { uuid, busy, used, .. }: SmiLine<'_>| {
        (uuid.to_owned(), GpuSample { busy_percent: number(busy), memory_mib: number(used) })
    };
    let rows = || text.lines().filter_map(row);
    GpuReport { gpus: rows().flat_map(gpus).collect(), samples: rows().map(look).collect() }
}

/// The first characters of what the driver says, without control characters.
fn clip(text: &str) -> String {
    text.trim().chars().filter(|c| !model::names::is_obeyed(*c)).take(MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(gpus: &[Gpu]) -> Vec<(&str, Option<&str>)> {
        gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.sick.as_deref())).collect()
    }

    #[test]
    fn the_driver_s_answer_has_a_line_for_each_gpu() {
        let dir = tempfile::tempdir().unwrap();
        for (bus, uuid, minor) in [("0000:00:1e.0", "GPU-b", 1), ("0000:00:1b.0", "GPU-a", 0)] {
            std::fs::create_dir(dir.path().join(bus)).unwrap();
            let text =
                format!("Model: \t\t NVIDIA A10G\nIRQ:   \t\t 10\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n");
            std::fs::write(dir.path().join(bus).join("information"), text).unwrap();
        }
        let devices = devices(dir.path());
        let text = "GPU-a, NVIDIA A10G, 23028 MiB, 37 %, 8192 MiB\n\
                    GPU-b, NVIDIA A10G, [GPU is lost], [GPU is lost], [GPU is lost]\n";
        let answered = |text: &str, devices: &[Gpu]| answered(text, devices, &BTreeMap::new());
        let GpuReport { gpus: all, samples } = answered(text, &devices);
        let (busy, unknown) = (GpuSample { busy_percent: Some(37), memory_mib: Some(8192) }, GpuSample::default());
        assert_eq!(samples, GpuSamples::from([("GPU-a".into(), busy), ("GPU-b".into(), unknown)]));
        assert_eq!(said(&all), [("GPU-a", None), ("GPU-b", Some("[GPU is lost]"))]);
        assert_eq!(all[1].device.as_deref(), Some(Path::new("/dev/nvidia1")));
        let unified = answered("GPU-c, NVIDIA GH200 480GB, [N/A], 5 %, [N/A]\n", &[]).gpus;
        assert_eq!((said(&unified), unified[0].device.clone()), (vec![("GPU-c", None)], None));
        let lost = "Unable to determine the device handle for GPU0000:00:1E.0: GPU is lost.";
        let some = answered(&format!("GPU-a, NVIDIA A10G, 23028 MiB, 0 %, 1 MiB\n{lost}\n"), &devices).gpus;
        let with = merged(some, &devices, lost);
        assert_eq!(said(&with), [("GPU-a", None), ("GPU-b", Some(lost))]);
        for nothing in ["", "No devices were found\n", "NVIDIA-SMI has failed, because it couldn't, communicate\n"] {
            assert_eq!(answered(nothing, &[]), GpuReport::default(), "{nothing}");
        }
    }

    #[test]
    fn the_slices_of_a_split_gpu_are_given_and_never_the_gpu_itself() {
        let list = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-a)\n  MIG 3g.20gb     Device  0: (UUID: MIG-1)\n  \
                    MIG 1g.5gb      Device  1: (UUID: MIG-2)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-b)\n\
                    GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-c)\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-c/7/0)\n";
        let line = |uuid: &str, mig: &str| format!("{uuid}, NVIDIA A100-SXM4-40GB, 40536 MiB, [N/A], 1 MiB, {mig}\n");
        let text = [line("GPU-a", "Enabled"), line("GPU-b", "Disabled"), line("GPU-c", "Enabled")].concat();
        let device =
            Gpu { uuid: "GPU-a".into(), model: "A100".into(), device: Some("/dev/nvidia0".into()), sick: None };
        let gpus = answered(&text, std::slice::from_ref(&device), &slices(list)).gpus;
        let all = [("MIG-1", None), ("MIG-2", None), ("GPU-b", None), ("GPU-c", Some(UNCUT))];
        assert_eq!(said(&gpus), all, "a name of the form of old drivers cannot be given");
        assert_eq!((gpus[1].model.as_str(), &gpus[1].device), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", &device.device));
        assert!(slices("No devices found.\n").is_empty());
    }

    #[test]
    fn what_is_not_found_any_more_is_sick() {
        let gpu = |uuid: &str| Gpu { uuid: uuid.into(), model: "m".into(), device: None, sick: None };
        let all = merged(vec![gpu("GPU-b")], &[gpu("GPU-a"), gpu("GPU-b")], "gone");
        assert_eq!(said(&all), [("GPU-b", None), ("GPU-a", Some("gone"))]);
        assert_eq!(merged(vec![gpu("GPU-a")], &all, "gone").len(), 2);
    }

    #[test]
    fn a_mistake_in_the_file_is_told_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gpus.json");
        let error = |text: Option<&str>| {
            text.inspect(|text| std::fs::write(&path, text).unwrap());
            GpuSource::of(Some(&path)).err().map(|e| e.to_string()).unwrap_or_default()
        };
        for (text, says) in [
            (None, "No such file"),
            (Some("{}"), "invalid type"),
            (Some(r#"[{"name": "x"}]"#), "unknown field `name`"),
            (Some(r#"[{"model": "x"}]"#), "missing field `uuid`"),
            (Some(r#"[{"uuid": "a,b"}]"#), "is no uuid"),
            (Some(r#"[{"uuid": "a"}, {"uuid": "a"}]"#), "listed twice"),
        ] {
            let said = error(text);
            assert!(said.contains("--gpus-from") && said.contains(says), "{text:?}: {said}");
        }
        assert_eq!(error(Some(r#"[{"uuid": "a", "model": "x", "device": "/dev/x", "sick": true}]"#)), "");
        assert_eq!(said(&read(&path).unwrap().gpus), [("a", Some("the file says that it is sick"))]);
    }
}
