//! Turns hints of the engine into text that names commands and options.

use std::path::Path;

use tare_engine::{Hint, LimitName};

pub fn words(hint: &Hint) -> String {
    let text = match hint {
        Hint::Text(text) => text,
        Hint::ListBoxes => "'tare ls -a' lists all",
        Hint::SeeHowItEnded => "'tare ls -a' says how; 'tare run -d' starts another",
        Hint::InspectOrForce => "'tare inspect' says what it is doing; 'tare rm -f' ends it",
        Hint::Force => "'tare rm -f' ends it",
        Hint::StopOrForce => "stop it first, or use 'tare rm -f'",
        Hint::ContinueKeeperOrForce => "continue the keeper with SIGCONT, or use 'tare rm -f'",
        Hint::Resume => "'tare resume' lets it go on",
        Hint::ChooseAnotherName => "choose another, or 'tare rm -f' removes that box",
        Hint::IdWasUsed => "'tare explain' says what became of it",
        Hint::TriedAgain => {
            "a process in it may hang in the kernel; the next command tries again to end it"
        }
        Hint::CreateDetached(purpose) => return format!("start it with 'tare run -d' {purpose}"),
        Hint::PassLargeDataOtherwise => "pass large data through stdin, 'tare cp' or a volume",
        Hint::KeepFiles => "'tare run -d --keep' keeps the files of a box after its end",
        Hint::Raise(limit) => return format!("Raise {}.", option(*limit)),
        Hint::MoreScratch => "its scratch space has a size: --scratch of 'tare run'",
        Hint::TooSmall(limits) => return format!("is {} too small?", options(limits)),
        Hint::LessOrMoreMemory(it) => {
            return format!("give less {}, or more --memory", option(*it));
        }
        Hint::LeaveLimitOut(limit) => {
            return format!(
                "run as root, or in a delegated cgroup with 'systemd-run --user --scope -p \
                 Delegate=yes tare run ...', or leave {} out; see 'tare doctor'",
                option(*limit)
            );
        }
        Hint::Emulate => "--accel tcg emulates the processor, which is not a security boundary",
        Hint::NetworkOfMachine => "leave --net host out, or use --driver native",
        Hint::FilesOfMachine => "use -v for them, or 'tare cp' before its end",
        Hint::MoreTimeToBoot => {
            "TARE_VM_BOOT sets the time; 'tare doctor' shows what the host lacks"
        }
        Hint::SeeDoctor => "'tare doctor' says what this host can do",
        Hint::LeaveUserOut => "leave -u out: this box has one user",
        Hint::ContainedHasOneUser => "leave -u out: a box with --contain has one user",
        Hint::LeaveScratchOrKeepOut => "run as root, or leave --scratch or --keep out",
        Hint::EndWaiting => "'tare rm -f' ends it, and the server replaces it",
        Hint::Retention => "--retention says how long the history of a box is kept",
        Hint::HistorySize => "[history] bytes, or --history-bytes, says how much is kept",
        Hint::OtherWorkdir => {
            "-w takes a directory that exists in the box and that its user may enter"
        }
        Hint::ProgramInBox => {
            "a box has no image: it sees the host's /usr, or what --rootfs holds, and what -v gives \
             it; is the program, or the interpreter it names, there?"
        }
        Hint::SizeForm => "write a size such as 64k, 512m, 1.5g or 1048576",
        Hint::VariableForm => "write KEY=VALUE; the host's environment is not passed in",
        Hint::LabelForm => "write KEY=VALUE, such as team=blue",
        Hint::MoreMemoryInNewBox => "make a new box with --memory",
        Hint::NativeDriver => "use --driver native",
        Hint::ContainOfMachine => "leave --contain out, or use --driver native",
        Hint::InstallEmulator => "install qemu-system-x86, or use --accel kvm",
        Hint::FetchKernel(directory) => return fetch_kernel(directory),
        Hint::ListKernels => "'tare vm kernel ls' lists all",
        Hint::SeeProcesses => "try again later; 'tare inspect' names its processes",
        Hint::AskForReceipt => {
            "the receipt of a removed box is kept for its retention; a run has one only with \
             --receipt"
        }
        Hint::Also(also) => {
            let first = also.first.as_ref().map(|hint| words(hint) + "; ").unwrap_or_default();
            return format!("{first}also, {}; {}", also.failure, words(&also.advice));
        }
    };
    text.to_owned()
}

fn options(limits: &[LimitName]) -> String {
    let options: Vec<&str> = limits.iter().copied().map(option).collect();
    options.join(" or ")
}

fn fetch_kernel(directory: &Path) -> String {
    let directory = directory.display();
    format!(
        "'tare vm kernel fetch' downloads one into {directory}; TARE_VM_DIR names another directory"
    )
}

fn option(limit: LimitName) -> &'static str {
    match limit {
        LimitName::Memory => "--memory",
        LimitName::Pids => "--pids",
        LimitName::Cpus => "--cpus",
        LimitName::Scratch => "--scratch",
        LimitName::Output => "--output-limit",
        LimitName::Timeout => "--timeout",
        LimitName::Lease => "--lease",
    }
}
