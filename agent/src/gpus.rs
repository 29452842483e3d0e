//! The GPUs of this machine: found with `nvidia-smi`, or read from a file (`--gpus-from`).
//!
//! `nvidia-smi` comes with each driver. The agent does not load NVIDIA's library (NVML): the released agent is linked without a
//! dynamic loader, so that it also runs in an empty container, and such a program cannot load libraries.
//!
//! Guarantees: a GPU that is no longer found, or for which the driver reports an error, is sick; the control plane hears of each
//! change at once; no question to the driver waits longer than `TIMEOUT`; a file tells the supervisors of allocs how busy each GPU
//! was at the last look.
//! Does not: decide which alloc gets which GPU (`protocol::gpus` does), repair a GPU, or split one.

use crate::node_state::NodeState;
use crate::protocol::Gpu;
use crate::usage::{GpuLook, GpuLooks, write_gpu_looks};
use anyhow::bail;
use serde::Deserialize;
use std::collections::BTreeSet;
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

const QUERY: &str = "--query-gpu=uuid,name,memory.total,utilization.gpu,memory.used";

/// Where the driver says which device file a GPU has.
const DRIVER: &str = "/proc/driver/nvidia/gpus";

/// The most characters of the driver's messages that are passed on.
const MAX_SAID: usize = 80;

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
struct Listed {
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
struct Found {
    gpus: Vec<Gpu>,
    /// How busy they are, by uuid.
    looks: GpuLooks,
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
    async fn find(&self, known: &[Gpu]) -> Found {
        let (found, why) = match self {
            Self::File(path) => match read(path) {
                Ok(found) => (found, "the file does not list it any more".to_owned()),
                Err(why) => (Found::default(), format!("{}: {why}", path.display())),
            },
            Self::Driver => ask().await,
        };
        Found { gpus: merged(found.gpus, known, &why), looks: found.looks }
    }

    const fn every(&self) -> Duration {
        match self {
            Self::Driver => ASK_EVERY,
            Self::File(_) => READ_EVERY,
        }
    }
}

/// Looks before the first heartbeat, so that the control plane knows from the beginning how many GPUs there are.
pub async fn first(state: &NodeState, source: &GpuSource) {
    let Found { gpus, .. } = source.find(&[]).await;
    for gpu in &gpus {
        tracing::info!(uuid = gpu.uuid, model = gpu.model, device = ?gpu.device, sick = gpu.sick, "this machine has a GPU");
    }
    state.update_or_log(|node| node.gpus = gpus);
}

/// Looks again and again, and reports each change to the control plane at once. If the driver found no GPU at the start, it is not
/// asked again: no GPU appears while the machine is up.
pub async fn watch(state: &NodeState, source: &GpuSource, looks_file: &Path) {
    loop {
        tokio::time::sleep(source.every()).await;
        let known = state.read(|node| node.gpus.clone());
        if known.is_empty() && *source == GpuSource::Driver {
            return std::future::pending().await;
        }
        let Found { gpus, looks } = source.find(&known).await;
        if let Err(error) = write_gpu_looks(&looks, looks_file) {
            tracing::warn!(%error, "cannot write down how busy the GPUs are");
        }
        if gpus == known {
            continue;
        }
        match crate::protocol::sick(&gpus) {
            Some(sick) => tracing::error!(sick, "GPUs cannot be used"),
            None => tracing::info!("all GPUs can be used"),
        }
        if state.update_or_log(|node| node.gpus = gpus).is_some() {
            state.heartbeat_now.notify_one();
        }
    }
}

/// The found GPUs, and the known ones that are missing now. The missing ones are sick for the reason `why`.
fn merged(found: Vec<Gpu>, known: &[Gpu], why: &str) -> Vec<Gpu> {
    let names: BTreeSet<String> = found.iter().map(|gpu| gpu.uuid.clone()).collect();
    let missing = known.iter().filter(|gpu| !names.contains(&gpu.uuid));
    let missing: Vec<Gpu> = missing.map(|gpu| Gpu { sick: Some(why.to_owned()), ..gpu.clone() }).collect();
    found.into_iter().chain(missing).collect()
}

fn read(path: &Path) -> Result<Found, String> {
    let text = std::fs::read(path).map_err(|e| e.to_string())?;
    let listed: Vec<Listed> = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    let (mut names, mut looks) = (BTreeSet::new(), GpuLooks::new());
    for Listed { uuid, busy_percent, memory_mib, .. } in &listed {
        if !is_uuid(uuid) {
            return Err(format!("{uuid:?} is no uuid: 1 to 64 letters, digits and '-'"));
        }
        if !names.insert(uuid) {
            return Err(format!("{uuid:?} is listed twice"));
        }
        looks.insert(uuid.clone(), GpuLook { busy_percent: *busy_percent, memory_mib: *memory_mib });
    }
    let gpu = |Listed { uuid, model, device, sick, .. }| {
        let sick = sick.then(|| "the file says that it is sick".to_owned());
        Gpu { uuid, model, device, sick }
    };
    Ok(Found { gpus: listed.into_iter().map(gpu).collect(), looks })
}

/// Whether this names a GPU. The name reaches environments, and an option of docker.
fn is_uuid(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Asks the driver. The text says why a GPU that is missing in the answer is sick.
async fn ask() -> (Found, String) {
    let mut command = Command::new("nvidia-smi");
    command.args([QUERY, "--format=csv,noheader"]);
    command.stdin(Stdio::null()).kill_on_drop(true);
    let devices = devices(Path::new(DRIVER));
    let (found, why) = match tokio::time::timeout(TIMEOUT, command.output()).await {
        Ok(Ok(output)) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let said = String::from_utf8_lossy(&output.stderr);
            let last = text.lines().chain(said.lines()).rfind(|line| !line.trim().is_empty() && row(line).is_none());
            let why = last.map_or_else(|| "nvidia-smi does not list it any more".to_owned(), clip);
            (answered(&text, &devices), why)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {
            return (Found::default(), "there is no nvidia-smi any more".into());
        }
        Ok(Err(error)) => (Found::default(), format!("nvidia-smi cannot be run: {error}")),
        Err(_) => (Found::default(), format!("nvidia-smi gave no answer in {} s", TIMEOUT.as_secs())),
    };
    (Found { gpus: merged(found.gpus, &devices, &why), looks: found.looks }, why)
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

/// The fields of a line of the answer, as [`QUERY`] asks for them.
fn row(line: &str) -> Option<[&str; 5]> {
    let mut fields = line.split(',').map(str::trim);
    let mut next = || fields.next();
    let row = [next()?, next()?, next()?, next()?, next()?];
    is_uuid(row[0]).then_some(row)
}

/// The number before a unit; `None` for `[N/A]`.
fn number(field: &str) -> Option<u64> {
    field.split(' ').next()?.parse().ok()
}

fn answered(text: &str, devices: &[Gpu]) -> Found {
    let gpu = |[uuid, model, memory, ..]: [&str; 5]| {
        let errors = [model, memory].into_iter().find(|field| {
            let lower = field.to_ascii_lowercase();
            ["lost", "error", "err!"].iter().any(|word| lower.contains(word))
        });
        let device = devices.iter().find(|known| known.uuid == uuid).and_then(|known| known.device.clone());
        Gpu { uuid: uuid.to_owned(), model: clip(model), device, sick: errors.map(clip) }
    };
    let look = |[uuid, _, _, busy, memory]: [&str; 5]| {
        (uuid.to_owned(), GpuLook { busy_percent: number(busy), memory_mib: number(memory) })
    };
    let rows = || text.lines().filter_map(row);
    Found { gpus: rows().map(gpu).collect(), looks: rows().map(look).collect() }
}

/// The first characters of what the driver says, without control characters.
fn clip(text: &str) -> String {
    text.trim().chars().filter(|c| !model::names::is_obeyed(*c)).take(MAX_SAID).collect()
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
        let Found { gpus: all, looks } = answered(text, &devices);
        let (busy, unknown) = (GpuLook { busy_percent: Some(37), memory_mib: Some(8192) }, GpuLook::default());
        assert_eq!(looks, GpuLooks::from([("GPU-a".into(), busy), ("GPU-b".into(), unknown)]));
        assert_eq!(said(&all), [("GPU-a", None), ("GPU-b", Some("[GPU is lost]"))]);
        assert_eq!(all[1].device.as_deref(), Some(Path::new("/dev/nvidia1")));
        let unified = answered("GPU-c, NVIDIA GH200 480GB, [N/A], 5 %, [N/A]\n", &[]).gpus;
        assert_eq!((said(&unified), unified[0].device.clone()), (vec![("GPU-c", None)], None));
        let lost = "Unable to determine the device handle for GPU0000:00:1E.0: GPU is lost.";
        let some = answered(&format!("GPU-a, NVIDIA A10G, 23028 MiB, 0 %, 1 MiB\n{lost}\n"), &devices).gpus;
        let with = merged(some, &devices, lost);
        assert_eq!(said(&with), [("GPU-a", None), ("GPU-b", Some(lost))]);
        for nothing in ["", "No devices were found\n", "NVIDIA-SMI has failed, because it couldn't, communicate\n"] {
            assert_eq!(answered(nothing, &[]), Found::default(), "{nothing}");
        }
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
