//! node and npm.

use tare_harness::skip::has_program;
use tare_harness::{Output, Tare, skip, tare};

use super::{file, shell};

#[track_caller]
fn node(tare: &Tare, source: &str) -> Output {
    file(tare, &[], "node", "program.js", source)
}

#[test]
fn node_has_workers_that_share_memory() {
    let tare = tare!();
    if !has_program("node") {
        skip!("this host has no node");
    }
    let source = "
const { Worker, isMainThread, workerData, parentPort } = require('worker_threads');
if (isMainThread) {
  const shared = new SharedArrayBuffer(4);
  const workers = [...Array(4)].map(() => new Worker(__filename, { workerData: shared }));
  Promise.all(workers.map((one) => new Promise((done) => one.on('exit', done))))
    .then((codes) => console.log(codes, new Int32Array(shared)[0]));
} else {
  for (let n = 0; n < 1000; n++) Atomics.add(new Int32Array(workerData), 0, 1);
  parentPort.postMessage('done');
}
";
    node(&tare, source).ok().printed("[ 0, 0, 0, 0 ] 4000\n").said_nothing();
}

#[test]
fn node_serves_and_asks_on_loopback() {
    let tare = tare!();
    if !has_program("node") {
        skip!("this host has no node");
    }
    let source = "
const http = require('http');
const server = http.createServer((request, response) => response.end('asked for ' + request.url));
server.listen(0, 'localhost', () => {
  http.get({ host: 'localhost', port: server.address().port, path: '/it' }, (response) => {
    let text = '';
    response.on('data', (part) => (text += part));
    response.on('end', () => { console.log(response.statusCode, text); server.close(); });
  });
});
";
    node(&tare, source).ok().printed("200 asked for /it\n").said_nothing();
}

#[test]
fn node_has_child_processes() {
    let tare = tare!();
    if !has_program("node") {
        skip!("this host has no node");
    }
    let source = "
const { execSync, spawn, fork } = require('child_process');
if (process.argv[2] === 'child') {
  process.on('message', (n) => process.send(n * 2, () => process.disconnect()));
} else {
  console.log(execSync('echo $((6 * 7))').toString().trim());
  const child = spawn('tr', ['a-z', 'A-Z']);
  child.stdout.on('data', (data) => console.log(data.toString().trim()));
  child.stdin.end('upper');
  child.on('close', (code) => {
    console.log('closed', code);
    const forked = fork(__filename, ['child']);
    forked.on('message', (answer) => console.log('answer', answer));
    forked.send(21);
  });
}
";
    node(&tare, source).ok().printed("42\nUPPER\nclosed 0\nanswer 42\n").said_nothing();
}

#[test]
fn node_reads_writes_and_watches_files() {
    let tare = tare!();
    if !has_program("node") {
        skip!("this host has no node");
    }
    let source = "
const fs = require('fs'), os = require('os'), crypto = require('crypto');
fs.mkdirSync('a/b', { recursive: true });
const watcher = fs.watch('a/b', (kind, name) => {
  console.log('saw', name);
  watcher.close();
  fs.promises.readFile('a/b/file', 'utf8').then(async (text) => {
    await fs.promises.cp('a', 'copy', { recursive: true });
    fs.rmSync('a', { recursive: true });
    console.log(text, fs.existsSync('a'), fs.readdirSync('copy/b'));
    console.log(crypto.randomBytes(8).length, os.cpus().length > 0, os.tmpdir(), os.userInfo().username);
  });
});
fs.writeFileSync('a/b/file', 'content');
";
    node(&tare, source)
        .ok()
        .printed("saw file\ncontent false [ 'file' ]\n8 true /tmp box\n")
        .said_nothing();
}

#[test]
fn npm_makes_installs_and_runs_a_package_offline() {
    let tare = tare!();
    if !has_program("npm") {
        skip!("this host has no npm");
    }
    let script = "
        npm --version > version
        mkdir thing app
        cd thing
        npm init -y > /dev/null
        echo 'module.exports = \"installed\"' > index.js
        npm pack --silent
        cd ../app
        npm init -y > /dev/null
        npm pkg set scripts.say='node -p \"require(\\\"thing\\\")\"'
        npm install --offline --no-audit --no-fund --silent ../thing/thing-1.0.0.tgz
        npm run --silent say";
    shell(&tare, &[], script).ok().printed("thing-1.0.0.tgz\ninstalled\n");
}
