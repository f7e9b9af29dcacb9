//! Compilers, make, git and java.

use tare_harness::skip::has_program;
use tare_harness::{skip, tare};

use super::shell;

#[test]
fn gcc_compiles_links_and_the_program_runs() {
    let tare = tare!();
    if !has_program("gcc") {
        skip!("this host has no gcc");
    }
    let script = r#"
        cat > answer.c <<'END'
int answer(void) { return 42; }
END
        cat > main.c <<'END'
#include <math.h>
#include <pthread.h>
#include <stdio.h>
int answer(void);
static void *work(void *sum) { __atomic_add_fetch((int *)sum, answer(), __ATOMIC_SEQ_CST); return 0; }
int main(void) {
    pthread_t threads[16]; int sum = 0;
    for (int i = 0; i < 16; i++) if (pthread_create(&threads[i], 0, work, &sum)) return 1;
    for (int i = 0; i < 16; i++) pthread_join(threads[i], 0);
    printf("%d %.0f\n", sum, sqrt(sum * sum));
    return 0;
}
END
        gcc -O2 -fPIC -shared -o libanswer.so answer.c
        gcc -O2 -pthread -o dynamic main.c -L. -lanswer -lm -Wl,-rpath,'$ORIGIN'
        ./dynamic
        gcc -O2 -pthread -static -o alone main.c answer.c -lm
        ./alone"#;
    shell(&tare, &[], script).ok().printed("672 672\n672 672\n").said_nothing();
}

#[test]
fn gpp_compiles_threads_exceptions_and_streams() {
    let tare = tare!();
    if !has_program("g++") {
        skip!("this host has no g++");
    }
    let script = r#"
        cat > main.cpp <<'END'
#include <future>
#include <iostream>
#include <stdexcept>
int main() {
    auto broken = std::async(std::launch::async, []() -> int { throw std::runtime_error("caught"); });
    try { broken.get(); } catch (const std::exception &error) { std::cout << error.what() << std::endl; }
}
END
        g++ -O2 -std=c++17 -pthread -o main main.cpp
        ./main"#;
    shell(&tare, &[], script).ok().printed("caught\n").said_nothing();
}

/// Sanitizers map terabytes of address space, which a box does not limit.
#[test]
fn address_sanitizer_works() {
    let tare = tare!();
    if !has_program("gcc") {
        skip!("this host has no gcc");
    }
    let script = r#"
        echo 'int main(int n, char **v) { char b[4]; b[n + 3] = 1; return b[0]; }' > bad.c
        gcc -fsanitize=address -o bad bad.c
        ./bad 2>&1 | grep -o 'stack-buffer-overflow' | head -n 1"#;
    shell(&tare, &[], script).ok().printed("stack-buffer-overflow\n");
}

#[test]
fn make_builds_in_parallel_and_only_what_changed() {
    let tare = tare!();
    if !has_program("make") {
        skip!("this host has no make");
    }
    let script = r#"
        printf 'all: a b c d\n%%: %%.in\n\tcp $< $@\n' > Makefile
        touch -d '-1 hour' a.in b.in c.in d.in
        make -s -j4
        make -q
        touch -d '-1 minute' a b c d
        touch c.in
        make -j4"#;
    shell(&tare, &[], script).ok().printed("cp c.in c\n").said_nothing();
}

#[test]
fn git_commits_clones_and_pushes() {
    let tare = tare!();
    if !has_program("git") {
        skip!("this host has no git");
    }
    let script = r#"
        git init -q -b main project
        cd project
        echo content > file
        git add file
        git commit -q -m 'a commit'
        cd ..
        git clone -q --bare project bare.git
        git clone -q bare.git clone
        cd clone
        echo more >> file
        git commit -q -a -m 'another'
        git push -q origin main
        git -C ../bare.git log --format='%an: %s'
        git gc -q
        git fsck --no-progress"#;
    let identity = [
        "-e",
        "GIT_AUTHOR_NAME=A",
        "-e",
        "GIT_AUTHOR_EMAIL=a@b.c",
        "-e",
        "GIT_COMMITTER_NAME=A",
        "-e",
        "GIT_COMMITTER_EMAIL=a@b.c",
    ];
    shell(&tare, &identity, script).ok().printed("A: another\nA: a commit\n").said_nothing();
}

/// Java sees the box's memory limit only if it finds its cgroup, so the test sets the heap size to
/// fit the default 512 MiB.
#[test]
fn java_compiles_and_runs_threads() {
    let tare = tare!();
    if !has_program("javac") {
        skip!("this host has no javac");
    }
    let script = r#"
        cat > Main.java <<'END'
import java.util.stream.IntStream;
public class Main {
    public static void main(String[] args) throws Exception {
        Thread thread = new Thread(() -> System.out.println("thread"));
        thread.start();
        thread.join();
        System.out.println(IntStream.range(0, 1000).parallel().sum());
        try (var server = new java.net.ServerSocket(0);
             var client = new java.net.Socket("localhost", server.getLocalPort())) {
            System.out.println(client.isConnected());
        }
    }
}
END
        javac -J-Xmx256m Main.java
        java -Xmx128m Main"#;
    shell(&tare, &[], script).ok().printed("thread\n499500\ntrue\n").said_nothing();
}
