//! What the table and the programs look like.

use crate::create::seccomp::tests::interpreter::{Answer, Call, X86_64, run, validate};
use crate::create::seccomp::tests::rule::{Check, EPERM, Rule};
use crate::create::seccomp::tests::*;

#[test]
fn the_table_ascends_and_names_no_call_twice() {
    assert!(table::SYSCALLS.is_sorted_by(|(a, ..), (b, ..)| a < b));
    let mut names: Vec<_> = table::SYSCALLS.iter().map(|(_, name, _)| name).collect();
    names.sort_unstable();
    assert!(names.is_sorted_by(|a, b| a < b));
}

#[test]
fn the_table_agrees_with_the_headers_of_this_host() {
    let path = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";
    let Ok(header) = std::fs::read_to_string(path) else {
        return skip("this host has no kernel headers");
    };
    let ours: Vec<_> =
        table::SYSCALLS.iter().map(|(number, name, _)| (number.to_string(), *name)).collect();
    let definitions =
        header.lines().filter_map(|line| line.strip_prefix("#define __NR_")?.split_once(' '));
    for (name, number) in definitions {
        // A newer header may know more than we do.
        let is_newer = number.parse::<u32>().is_ok_and(|number| number > 469);
        assert!(is_newer || ours.contains(&(number.to_string(), name)), "{name} {number}");
    }
}

/// The profile counts 383 calls: 291 allowed, 5 by their arguments, 4 ENOSYS and
/// 83 EPERM. Of those that it allows, prlimit64 is allowed by its arguments here: it
/// reaches a keeper that has the ids of its command.
#[test]
fn the_default_profile_allows_the_documented_number_of_calls() {
    let verdicts = table::SYSCALLS
        .map(|(_, _, rule)| rule.verdict(SeccompProfile::Default, SetIdBits::Allowed));
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|each| wanted(each)).count();
    assert_eq!(verdicts.len(), 383);
    assert_eq!(count(|each| *each == Verdict::Allow), 290);
    assert_eq!(count(|each| matches!(each, Verdict::Check(_))), 6);
    assert_eq!(count(|each| *each == Verdict::Errno(ENOSYS)), 4);
    assert_eq!(count(|each| *each == Verdict::Errno(EPERM)), 83);
}

#[test]
fn a_program_has_at_most_250_instructions_and_runs_few_of_them() {
    for (profile, bits) in variants() {
        let program = confined(profile, bits);
        assert!(program.len() <= 250, "{profile:?} {bits:?}");
        for number in 0..1024 {
            let call = Call { number, architecture: X86_64, arguments: [0xffff_ffff; 6] };
            let steps = run(&program, &call).instructions;
            assert!(steps <= 20, "{number} takes {steps}");
        }
    }
}

#[test]
fn verdicts_further_away_than_a_jump_reaches_are_still_found() {
    const RULES: [Rule; 5] = [
        Rule::Allow,
        Rule::SocketDomain,
        Rule::Errno(ENOSYS),
        Rule::CloneFlags,
        Rule::Errno(EPERM),
    ];
    let verdict = |number: u32| {
        RULES[number as usize % RULES.len()].verdict(SeccompProfile::Default, SetIdBits::Allowed)
    };
    let ranges: Vec<_> = (0..2000).map(|start| Range { start, verdict: verdict(start) }).collect();
    let program = compile::program(&ranges);
    validate(&program);
    for number in 0..2000 {
        let call = Call { number, architecture: X86_64, arguments: [1 << 28; 6] };
        let expected = match verdict(number) {
            Verdict::Allow => Answer::Allow,
            Verdict::Errno(errno) => Answer::Errno(u32::from(errno)),
            Verdict::Check(Check::SocketDomain) => Answer::Errno(97),
            Verdict::Check(_) => Answer::Errno(1),
        };
        assert_eq!(run(&program, &call).answer, expected, "{number}");
    }
}
