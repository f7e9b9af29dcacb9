//! Prints what the product is built from, as a CycloneDX bill of materials
//! (<https://cyclonedx.org/docs/1.6/json/>).

use crate::failure::{Context, Failure};
use crate::workspace::{Package, Workspace};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;

pub fn text() -> Result<String, Failure> {
    let bill = bill(&Workspace::with_dependencies()?)?;
    let text = serde_json::to_string_pretty(&bill).context(|| "cannot write the bill".into())?;
    Ok(text + "\n")
}

/// The bill has no date, no random number and no path: the same sources give the same bill.
fn bill(workspace: &Workspace) -> Result<Value, Failure> {
    let checksums = checksums(workspace)?;
    let (product, dependencies) = workspace.product()?;
    let components = dependencies.iter().map(|it| component(workspace, it, &checksums));
    let edges = std::iter::once(&product).chain(&dependencies).map(|package| {
        let uses: Vec<String> = workspace.uses(package).into_iter().map(reference).collect();
        json!({ "ref": reference(package), "dependsOn": uses })
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": reference(product),
            "name": product.name,
            "version": product.version,
            "licenses": licences(product),
        } },
        "components": components.collect::<Vec<_>>(),
        "dependencies": edges.collect::<Vec<_>>(),
    }))
}

/// The name of a package in the bill.
fn reference(package: &Package) -> String {
    format!("{}@{}", package.name, package.version)
}

fn component(
    workspace: &Workspace,
    package: &Package,
    checksums: &HashMap<(String, String), String>,
) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": reference(package),
        "name": package.name,
        "version": package.version,
        "licenses": licences(package),
    });
    if !workspace.is_ours(package) {
        component["purl"] = format!("pkg:cargo/{}", reference(package)).into();
    }
    if let Some(sum) = checksums.get(&(package.name.clone(), package.version.clone())) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

/// Some crates write the `/` of earlier versions of cargo, which is no SPDX expression.
fn licences(package: &Package) -> Value {
    let expression = package.license.as_deref().map(|it| it.replace('/', " OR "));
    json!(expression.into_iter().map(|it| json!({ "expression": it })).collect::<Vec<_>>())
}

/// The checksum of each crate, by name and version, from `Cargo.lock`.
fn checksums(workspace: &Workspace) -> Result<HashMap<(String, String), String>, Failure> {
    let path = workspace.workspace_root.join("Cargo.lock");
    let text = fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))?;
    let entries = text.split("[[package]]").filter_map(|entry| {
        let value = |key: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(key));
            line.map(|quoted| quoted.trim_matches('"').to_owned())
        };
        Some(((value("name = ")?, value("version = ")?), value("checksum = ")?))
    });
    Ok(entries.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The required fields and the uniqueness rules of CycloneDX's schema.
    #[test]
    fn the_bill_has_what_the_schema_requires_and_names_the_products_dependencies() {
        let bill = bill(&Workspace::with_dependencies().unwrap()).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["specVersion"], "1.6");
        let product = &bill["metadata"]["component"];
        assert_eq!((&product["type"], &product["name"]), (&"application".into(), &"tare".into()));

        let components = bill["components"].as_array().unwrap();
        let mut references = HashSet::from([product["bom-ref"].as_str().unwrap()]);
        for component in components {
            assert_eq!(component["type"], "library");
            assert!(component["name"].is_string() && component["version"].is_string());
            assert!(references.insert(component["bom-ref"].as_str().unwrap()), "{component}");
            let expression = component["licenses"][0]["expression"].as_str();
            assert!(expression.is_some_and(|it| !it.contains('/')), "{component}");
            let is_ours = component["name"].as_str().unwrap().starts_with("tare");
            assert_eq!(component["purl"].is_null(), is_ours, "{component}");
            assert_eq!(component["hashes"].is_null(), is_ours, "{component}");
        }
        for edge in bill["dependencies"].as_array().unwrap() {
            for name in edge["dependsOn"].as_array().unwrap().iter().chain([&edge["ref"]]) {
                assert!(references.contains(name.as_str().unwrap()), "{name}");
            }
        }
        let has = |name: &str| components.iter().any(|it| it["name"] == name);
        assert!(
            !bill
                .to_string()
                .contains(env!("CARGO_MANIFEST_DIR").trim_end_matches("/crates/xtask"))
        );
        assert!(has("tokio") && has("tare-engine") && has("rustix"));
        assert!(!has("xtask") && !has("tare-harness"), "the product does not contain its tests");
    }
}
