// Loaded by node before the program (`node -r`), with the modules to load as arguments. It writes one
// byte when it is ready and reads one order from the standard input. Node then runs the program itself.
"use strict";
(() => {
    const fs = require("fs");
    // Worker threads load the file again. They find nothing to do.
    fs.writeFileSync(__filename, "");
    delete require.cache[__filename];
    process.execArgv.length = 0;
    // The shell that started node sets these.
    ["PWD", "OLDPWD", "SHLVL", "_"].forEach((name) => delete process.env[name]);
    const load = require("module").createRequire(process.argv[1]);
    process.argv.splice(2).forEach((name) => {
        fs.writeSync(1, "\n\u0001" + name + "\n");
        load(name);
    });

    function read(count) {
        const data = Buffer.alloc(count);
        for (let at = 0; at < count; ) {
            const size = fs.readSync(0, data, at, count - at, null);
            if (size === 0) {
                process.exit(0);
            }
            at += size;
        }
        return data;
    }

    fs.writeSync(1, "\0");
    const order = read(parseInt(read(16).toString(), 16));
    let at = 0;

    function word() {
        const begin = order.indexOf(10, at) + 1;
        const size = parseInt(order.toString("latin1", at, begin - 1), 10);
        at = begin + size;
        return order.subarray(begin, at);
    }

    function words() {
        return Array.from({ length: parseInt(word().toString(), 10) }, word);
    }

    const hasInput = word().toString() === "1";
    process.argv.push(...words().slice(1).map(String));
    const env = words().map(String);
    for (let i = 0; i < env.length; i += 2) {
        process.env[env[i]] = env[i + 1];
    }
    const files = words();
    for (let i = 0; i < files.length; i += 3) {
        const path = String(files[i]);
        fs.mkdirSync(require("path").dirname(path), { recursive: true });
        fs.writeFileSync(path, files[i + 2]);
        fs.utimesSync(path, Number(files[i + 1]), Number(files[i + 1]));
    }
    if (!hasInput) {
        fs.closeSync(0);
        fs.openSync("/dev/null", "r+");
    }
})();
