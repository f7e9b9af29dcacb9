//! `tare vm kernel`: the kernels that machines can boot.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use tare_engine::Error;
use tare_engine::spec::shown::escaped;
use tare_engine::vm::kernels::Kernel;

use crate::context::{Context, Purpose};
use crate::error::{print_json, print_result};
use crate::exit::DONE;
use crate::output::format;
use crate::output::table::{self, Column};

const EXAMPLES: &str = "\
Examples:
  tare vm kernel fetch
  tare vm kernel use ./linux-image-6.1.0-55-amd64_6.1.192-1_amd64.deb
  tare vm kernel use ./vmlinux --name lean
  tare vm kernel use /boot/vmlinuz-6.1.0-55-amd64 --modules /lib/modules/6.1.0-55-amd64
  tare vm kernel ls --json | jq -r '.[] | select(.chosen) | .name'
  tare vm kernel rm lean

TARE_VM_DIR is the directory of the kernels. The default is /var/lib/tare/vm for root, and
~/.local/share/tare/vm for other users.";

const COLUMNS: [Column; 5] = [
    Column::whole("NAME"),
    Column::whole("ORIGIN"),
    Column::whole("SIZE"),
    Column::whole("MODULES"),
    Column::whole("CHOSEN"),
];

/// Add, list, choose and remove the kernels that machines boot
///
/// A kernel is one file in tare's directory: the kernel, and the modules that a machine needs. It is
/// added as a whole or not at all, also if tare is killed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct KernelArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Download the generic kernel of this Debian or Ubuntu with apt, add it and choose it
    Fetch,
    /// Add a kernel from a package or from files, and choose it
    ///
    /// Extracts the kernel's ELF image, and picks the modules that a machine needs with their
    /// dependencies. If the kernel lacks a part, the error names it. A kernel of the same name is
    /// replaced.
    Use(UseArgs),
    /// List the kernels
    Ls(ListArgs),
    /// Choose the kernel of machines that name none
    Choose(NameArgs),
    /// Remove a kernel
    Rm(NameArgs),
}

#[derive(Debug, Args)]
struct UseArgs {
    /// A kernel package (.deb), the directory of an unpacked one, or a kernel (vmlinuz or vmlinux)
    #[arg(value_name = "FILE.deb|DIR|VMLINUX", value_hint = ValueHint::AnyPath)]
    source: PathBuf,

    /// The directory of the kernel's modules; without it, those in the package
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    modules: Option<PathBuf>,

    /// The name of the kernel in tare [default: its release, as 'uname -r' prints it]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Print a JSON array instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct NameArgs {
    /// A name that 'tare vm kernel ls' prints
    #[arg(value_name = "NAME")]
    name: String,
}

pub fn run(args: &KernelArgs, context: &Context) -> Result<u8, Error> {
    let kernels = context.kernels()?;
    let changed = match &args.action {
        Action::Fetch => Some(kernels.fetch()?),
        Action::Use(UseArgs { source, modules, name }) => {
            Some(kernels.add(source, modules.as_deref(), name.as_deref())?)
        }
        Action::Choose(NameArgs { name }) => Some(kernels.choose(name)?),
        Action::Rm(NameArgs { name }) => {
            refuse_used(context, name)?;
            kernels.remove(name).map(|()| None)?
        }
        Action::Ls(ListArgs { json: true }) => print_json(&kernels.list()?).map(|()| None)?,
        Action::Ls(ListArgs { json: false }) => {
            let rows: Vec<_> = kernels.list()?.iter().map(row).collect();
            let text = table::render(&COLUMNS, &rows, table::columns_of_stdout());
            print_result(&text).map(|()| None)?
        }
    };
    if let Some(kernel) = changed {
        let [name, origin, size, modules, chosen] = row(&kernel);
        print_result(&format!("{name}  {origin}  {size}  {modules} modules  {chosen}\n"))?;
    }
    Ok(DONE)
}

/// Refuses to remove a kernel that a machine runs.
fn refuse_used(context: &Context, name: &str) -> Result<(), Error> {
    match context.engine(Purpose::Look)?.with_kernel(name)? {
        None => Ok(()),
        Some(id) => Err(Error::conflict(format!("cannot remove the kernel {name}"))
            .caused_by(format!("the machine of box {id} runs it"))
            .with_hint(format!("'tare rm -f {id}' removes the box"))),
    }
}

fn row(kernel: &Kernel) -> [String; 5] {
    [
        escaped(&kernel.name),
        kernel.origin.name().to_owned(),
        format::size(Some(kernel.bytes)),
        kernel.modules.len().to_string(),
        if kernel.chosen { "chosen" } else { format::EMPTY_CELL }.to_owned(),
    ]
}
