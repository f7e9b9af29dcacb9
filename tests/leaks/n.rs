//! N. Networks. A tare box has no network by default, and no rules that deny parts of one.

use crate::leaks::case::case;

/// Tries the network in three ways; prints the name of each error and whether it came
/// within 5 s.
const TRYING: &str = "import errno, socket, time
def tried(what):
    start = time.monotonic()
    try: what(); name = 'nothing'
    except socket.gaierror as error: name = 'unresolved'
    except OSError as error: name = errno.errorcode[error.errno]
    print(name, time.monotonic() - start < 5)
tried(lambda: socket.create_connection(('192.0.2.1', 80), timeout=20))
tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53)))
tried(lambda: socket.getaddrinfo('name.invalid', 80))";

/// N4, mitos, microsandbox and CubeSandbox: a denied connection looked like a hang, for
/// hours.
#[test]
fn without_a_network_connections_fail_at_once_and_do_not_time_out() {
    let case = case();
    let output = case.run(["--timeout", "60s", "--", "python3", "-c", TRYING]);
    let expected = "ENETUNREACH True\nENETUNREACH True\nunresolved True\n";
    output.ok().printed(expected);
}
