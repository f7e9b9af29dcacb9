//! The parts that the kernel of a machine needs, and the modules that bring them.

use super::image::module_field;
use super::package::Package;
use crate::error::Error;

/// A driver that a machine needs.
struct Part {
    module: &'static str,
    purpose: &'static str,
    /// A text in kernels that have the driver built in.
    trace: &'static str,
}

const PARTS: [Part; 6] = [
    Part { module: "virtio_mmio", purpose: "devices", trace: "virtio-mmio" },
    Part { module: "virtio_console", purpose: "the keeper's port", trace: "virtio_console" },
    Part { module: "9pnet_virtio", purpose: "shared directories", trace: "9pnet_virtio" },
    Part { module: "9p", purpose: "shared directories", trace: "Installing v9fs" },
    Part { module: "overlay", purpose: "writable roots", trace: "overlayfs: " },
    Part { module: "virtio_balloon", purpose: "memory limits", trace: "virtio_balloon" },
];

/// What container engines need, for boxes with `--root`. A kernel without them boots machines all the
/// same. A module comes after those that it asks the kernel for while it starts, which are not listed as
/// its dependencies: `libcrc32c` asks for `crc32c_generic`.
const FOR_CONTAINERS: [&str; 18] = [
    "crc32c_generic",
    "bridge",
    "br_netfilter",
    "veth",
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nft_ct",
    "nft_masq",
    "nft_nat",
    "xt_addrtype",
    "xt_comment",
    "xt_conntrack",
    "xt_mark",
    "xt_MASQUERADE",
    "xt_multiport",
    "xt_nat",
    "xt_tcpudp",
];

/// Longer than any chain of dependencies, so that a circle ends.
const DEPTH_MAX: usize = 32;
/// The name under which ACPI lists virtio devices, and the one for those of the command line.
const ACPI_DEVICES: &str = "LNRO0005";
const LINE_DEVICES: &str = "virtio-mmio-cmdline";

/// A module of a kernel.
#[derive(Debug)]
pub struct KernelModule {
    pub name: String,
    pub content: Vec<u8>,
    /// Whether only machines of boxes with `--root` load it.
    pub only_for_root: bool,
}

/// The modules that a machine loads, in this order.
#[derive(Debug, Default)]
pub struct Chosen {
    pub modules: Vec<KernelModule>,
    /// Whether the kernel takes devices from its command line, so that it boots without ACPI.
    pub devices_on_command_line: bool,
}

/// Picks the needed modules with their dependencies. The error names every part that is missing.
pub fn choose(package: &Package) -> Result<Chosen, Error> {
    let mut chosen = Chosen::default();
    let mut missing = Vec::new();
    if !package.elf.has_pvh_entry() {
        missing.push("PVH (booting without firmware)".to_owned());
    }
    for part in &PARTS {
        if package.has_built_in(part.module, Some(part.trace)) {
            continue;
        }
        if !chosen.add(package, part.module, 0)? {
            missing.push(format!("{} ({})", part.module, part.purpose));
        }
    }
    chosen.devices_on_command_line = chosen.has_text(package, LINE_DEVICES);
    let finds_devices = chosen.devices_on_command_line || chosen.has_text(package, ACPI_DEVICES);
    if !finds_devices && !missing.iter().any(|it| it.starts_with("virtio_mmio")) {
        missing.push("virtio_mmio with ACPI or with devices on the command line".to_owned());
    }
    let needed = chosen.modules.len();
    for module in FOR_CONTAINERS {
        if !package.has_built_in(module, None) {
            chosen.add(package, module, 0).ok();
        }
    }
    chosen.modules[needed..].iter_mut().for_each(|module| module.only_for_root = true);
    if missing.is_empty() {
        Ok(chosen)
    } else {
        Err(Error::bad_request(format!(
            "the kernel {} lacks {}",
            package.elf.release(),
            missing.join(", ")
        ))
        .with_hint("use a generic kernel with its modules; those for clouds lack parts"))
    }
}

impl Chosen {
    /// Adds a module behind those that it depends on. Returns `false` if the package lacks it.
    fn add(&mut self, package: &Package, name: &str, depth: usize) -> Result<bool, Error> {
        if self.modules.iter().any(|it| it.name == name) {
            return Ok(true);
        }
        let Some(module) = package.module(name)? else {
            return Ok(false);
        };
        check_release(package, name, &module)?;
        if depth == DEPTH_MAX {
            return Err(Error::bad_request(format!("the module {name} depends on itself")));
        }
        let dependencies = module_field(&module, "depends").unwrap_or_default();
        for dependency in dependencies.split(',').filter(|it| !it.is_empty()) {
            let dependency = dependency.replace('-', "_");
            if !package.has_built_in(&dependency, None)
                && !self.add(package, &dependency, depth + 1)?
            {
                let message = format!("the package lacks {dependency}, which {name} depends on");
                return Err(Error::bad_request(message));
            }
        }
        let name = name.to_owned();
        self.modules.push(KernelModule { name, content: module, only_for_root: false });
        Ok(true)
    }

    fn has_text(&self, package: &Package, text: &str) -> bool {
        let has = |module: &[u8]| memchr::memmem::find(module, text.as_bytes()).is_some();
        self.modules.iter().any(|it| has(&it.content)) || package.elf.contains(text)
    }
}

/// A kernel loads only modules that were built with it.
fn check_release(package: &Package, name: &str, module: &[u8]) -> Result<(), Error> {
    let magic = module_field(module, "vermagic").unwrap_or_default();
    let (built_for, release) = (magic.split(' ').next().unwrap_or_default(), package.elf.release());
    if built_for == release {
        Ok(())
    } else {
        Err(Error::bad_request(format!(
            "the module {name} was built for {}, and the kernel is {release}",
            if built_for.is_empty() { "no kernel" } else { built_for }
        ))
        .with_hint("name the directory with the kernel's own modules"))
    }
}
