//! `plt.show()` saves figures, because a box has no screen.

use serde_json::{Value, json};
use tare_harness::{skip, tare};

use crate::librechat::client::{Chat, file, text, with_packages};

/// Shows two figures, and saves a third under its own name.
const SHOWN: &str = "import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
figure, axes = plt.subplots()
axes.plot([3, 1])
plt.show()
plt.plot([5])
plt.savefig('mine.png')
plt.show()
print(plt.get_fignums())
raise SystemExit(0 if __name__ == '__main__' else 1)";

/// The names of the files that the code made.
fn made(answer: &Value) -> Vec<&str> {
    let files = answer["files"].as_array().expect("files").iter();
    let mut names: Vec<&str> =
        files.filter(|file| file["inherited"] != true).map(|file| text(&file["name"])).collect();
    names.sort_unstable();
    names
}

#[test]
fn shown_figures_are_saved_with_the_next_free_numbers() {
    let Some(packages) = with_packages() else {
        skip!("matplotlib is not installed: ./check does that");
    };
    let tare = tare!();
    let chat = Chat::configured(&tare, "", &packages);
    let in_session = |lang: &str, code: &str| {
        chat.exec(json!({ "lang": lang, "code": code, "runtime_session_hint": "v2:user:a" }))
    };
    let first = in_session("py", SHOWN);
    assert_eq!(made(&first), ["mine.png", "plot_1.png", "plot_2.png"], "{first}");
    assert_eq!((&first["stdout"], &first["stderr"]), (&json!("[]\n"), &json!("")));
    let image = chat.download(file(&first, "plot_2.png"));
    assert!(image.body.starts_with(b"\x89PNG\r\n\x1a\n"), "an image");
    // Python that a shell starts saves its figures too, wherever it is.
    let shell = "cd /tmp; echo 'import pylab as p; p.plot([1]); p.show()' | python3";
    let second = in_session("bash", shell);
    assert_eq!(made(&second), ["plot_3.png"], "{second}");
    let seaborn = "import seaborn as sns\nsns.lineplot(x=[1, 2], y=[2, 1])\nsns.mpl.pyplot.show()";
    let third = in_session("py", seaborn);
    assert_eq!(made(&third), ["plot_4.png"], "{third}");
    let tools = json!({ "lang": "python", "code": SHOWN, "tools": [{ "name": "f" }] });
    let answer = chat.server.post("/v1/exec/programmatic", &tools).was(200).json();
    assert_eq!(made(&answer), ["mine.png", "plot_1.png", "plot_2.png"], "{answer}");
    chat.stop(&tare);
}

#[test]
fn figures_cost_other_code_nothing_and_shift_no_line() {
    let tare = tare!();
    let chat = Chat::start(&tare);
    let code = "import sys, os\nprint('matplotlib' in sys.modules, os.listdir('.'))\n1 / 0";
    let answer = chat.python(code);
    assert_eq!(answer["stdout"], "False []\n");
    let stderr = text(&answer["stderr"]);
    assert!(stderr.contains("line 3, in <module>"), "{stderr}");
    chat.stop(&tare);
}
