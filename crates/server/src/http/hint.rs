//! Hints of the engine in the words of an HTTP client: routes and fields.

use tare_engine::{Hint, LimitName};

/// Only an operator can run it.
const DOCTOR: &str = "ask the operator to run 'tare doctor'";

pub fn words(hint: &Hint) -> String {
    let text = match hint {
        Hint::Text(text) => text,
        Hint::ListBoxes => "GET /v1/boxes?all=true lists all",
        Hint::SeeHowItEnded => "GET of the box says how; POST /v1/boxes makes another",
        Hint::InspectOrForce => {
            "GET of the box says what it is doing; DELETE with ?force=true ends it"
        }
        Hint::Force => "DELETE with ?force=true ends it",
        Hint::StopOrForce => "stop it first, or use DELETE with ?force=true",
        Hint::ContinueKeeperOrForce => {
            "continue the keeper with SIGCONT, or use DELETE with ?force=true"
        }
        Hint::Resume => "POST to its /resume lets it go on",
        Hint::ChooseAnotherName => "choose another, or DELETE with ?force=true removes that box",
        Hint::IdWasUsed => "for another box, send another Idempotency-Key",
        Hint::TriedAgain => "a process in it may hang in the kernel; the server tries again",
        Hint::CreateDetached(purpose) => return format!("make it with POST /v1/boxes {purpose}"),
        Hint::PassLargeDataOtherwise => "pass large data through stdin or in a file",
        Hint::KeepFiles => "with \"keep\": true, a box keeps its files after its end",
        Hint::Raise(limit) => return format!("Raise {}.", field(*limit)),
        Hint::MoreScratch => "its scratch space has a size: limits.scratch_bytes",
        Hint::TooSmall(limits) => {
            let fields: Vec<&str> = limits.iter().copied().map(field).collect();
            return format!("is {} too small?", fields.join(" or "));
        }
        Hint::LessOrMoreMemory(limit) => {
            return format!("give less {}, or more limits.memory_bytes", field(*limit));
        }
        Hint::LeaveLimitOut(limit) => return format!("leave {} out, or {DOCTOR}", field(*limit)),
        Hint::Emulate => {
            "\"accel\": \"tcg\" emulates the processor, which is not a security boundary"
        }
        Hint::NetworkOfMachine => "leave 'network' out, or use \"driver\": \"native\"",
        Hint::FilesOfMachine => "leave 'keep' out, and download the files before the box ends",
        Hint::MoreTimeToBoot => "try again, or ask the operator to raise [vm] boot",
        Hint::SeeDoctor => DOCTOR,
        Hint::LeaveUserOut => "leave 'user' out: this box has one user",
        Hint::ContainedHasOneUser => "leave 'user' out: a contained box has one user",
        Hint::LeaveScratchOrKeepOut => "leave limits.scratch_bytes or \"keep\" out",
        Hint::EndWaiting => "DELETE with ?force=true ends it, and the server replaces it",
        Hint::Retention => "retention_ms says how long the history of a box is kept",
        Hint::HistorySize => "the operator sets with [history] bytes how much is kept",
        Hint::OtherWorkdir => {
            "workdir takes a directory that exists in the box and that its user may enter"
        }
        Hint::ProgramInBox => {
            "the box sees the host's /usr, and what the operator gives it; is the program, or the \
             interpreter it names, there?"
        }
        Hint::SizeForm => "write a number of bytes",
        Hint::VariableForm => "write {\"KEY\": \"VALUE\"}; the host's environment is not passed in",
        Hint::LabelForm => "write {\"KEY\": \"VALUE\"}, such as {\"team\": \"blue\"}",
        Hint::MoreMemoryInNewBox => "make a new box with more limits.memory_bytes",
        Hint::NativeDriver | Hint::ContainOfMachine => "use \"driver\": \"native\"",
        Hint::InstallEmulator => {
            "use \"accel\": \"kvm\", or ask the operator to install qemu-system-x86"
        }
        Hint::FetchKernel(_) => "ask the operator to run 'tare vm kernel fetch'",
        Hint::ListKernels => "ask the operator, to whom 'tare vm kernel ls' lists all",
        Hint::SeeProcesses => "the box is as before; try again later",
        Hint::AskForReceipt => {
            "the receipt of a removed box is kept for its retention; a run has one only with \
             \"receipt\": true"
        }
        Hint::Also(also) => {
            let first = also.first.as_ref().map(|hint| words(hint) + "; ").unwrap_or_default();
            return format!("{first}also, {}; {}", also.failure, words(&also.advice));
        }
    };
    text.to_owned()
}

fn field(limit: LimitName) -> &'static str {
    match limit {
        LimitName::Memory => "limits.memory_bytes",
        LimitName::Pids => "limits.pids",
        LimitName::Cpus => "limits.cpus",
        LimitName::Scratch => "limits.scratch_bytes",
        LimitName::Output => "the operator's [limits] output_bytes",
        LimitName::Timeout => "timeout_ms",
        LimitName::Lease => "lease_ms",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_the_host_cannot_enforce_is_named_as_a_field() {
        let hint = words(&Hint::LeaveLimitOut(LimitName::Memory));
        assert!(hint.starts_with("leave limits.memory_bytes out"), "{hint}");
    }
}
