//! What a box can reach on the network.

use std::net::TcpListener;

use tare_harness::tare;

const CONNECT: &str = "import socket, sys
socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=5).close()";

#[test]
fn a_box_has_only_its_own_loopback_interface() {
    let tare = tare!();
    let script = "import socket
print([name for _, name in socket.if_nameindex()])
server = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(server.getsockname(), timeout=5)
client.sendall(b'up')
print(server.accept()[0].recv(2).decode())";
    tare.run(["--", "python3", "-c", script]).ok().printed("['lo']\nup\n");
}

#[test]
fn listeners_of_the_host_are_reachable_only_with_net_host() {
    let tare = tare!();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let refused = tare.run(["--", "python3", "-c", CONNECT, &port]);
    assert_eq!(refused.code, 1, "{refused}");
    assert!(refused.stderr_text().contains("ConnectionRefusedError"), "{refused}");
    let refused = tare.run(["--net", "none", "--", "python3", "-c", CONNECT, &port]);
    assert_eq!(refused.code, 1, "{refused}");
    tare.run(["--net", "host", "--", "python3", "-c", CONNECT, &port]).ok();
    drop(listener);
}

#[test]
fn a_box_without_network_reaches_nothing() {
    let tare = tare!();
    let script = "import socket
try:
    socket.create_connection(('192.0.2.1', 80), timeout=5)
except OSError as error:
    print(error.strerror)";
    tare.run(["--", "python3", "-c", script]).ok().printed("Network is unreachable\n");
}

#[test]
fn two_boxes_can_use_the_same_port() {
    let tare = tare!();
    let script = "import socket; s = socket.create_server(('127.0.0.1', 8080)); print('bound', flush=True); input()";
    let mut first = tare.spawn(["--", "python3", "-c", script]);
    let mut second = tare.spawn(["--", "python3", "-c", script]);
    first.see("bound");
    second.see("bound");
    first.write(b"\n");
    second.write(b"\n");
    first.wait().ok();
    second.wait().ok();
}
