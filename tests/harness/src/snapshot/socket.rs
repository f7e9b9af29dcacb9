//! Listening ports and abstract unix names of the test's own network namespace.

use std::fs;

use super::Things;

pub fn observe() -> Things {
    // sock_diag(7): `/proc/net/tcp` walks the kernel's table of all connections, which
    // takes 8 ms for each of the two files even where there is none.
    let listening = tare_kernel::sockets::listening().expect("the kernel has sock_diag");
    let ports =
        listening.into_iter().map(|one| format!("{} port {}", one.transport.as_str(), one.address));
    ports.chain(abstract_names()).collect()
}

fn abstract_names() -> Vec<String> {
    let text = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.split_once(" @"));
    names.map(|(_, name)| format!("abstract unix name @{name}")).collect()
}
