//! A dry run of a plan in which one change depends on another.

use super::{SOMAXCONN, in_scene, plan_of_forty, settings};
use serde_json::json;

#[test]
fn a_value_that_an_earlier_change_sets_is_no_drift() {
    in_scene(|scene| {
        let path = scene.plan.to_str().unwrap().to_owned();
        let mut plan = plan_of_forty();
        let changes = plan["changes"].as_array_mut().unwrap();
        let first = changes.iter().find(|change| change["target"] == SOMAXCONN).unwrap().clone();
        let mut second = first.clone();
        second["id"] = json!("again");
        second["before"] = first["after"].clone();
        second["after"] = json!("345");
        *changes = vec![first, second];
        scene.write_plan(&plan);
        let tried = scene.run(&["apply", &path, "--dry-run"]);
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(tried.status.success(), "{said}");
        assert!(said.contains("depends on an earlier change of the plan"), "{said}");
        assert!(settings() == scene.before);
        assert!(scene.run(&["apply", &path]).status.success());
        assert!(scene.run(&["rollback"]).status.success());
        assert!(settings() == scene.before);
        // Nothing earlier explains it.
        plan["changes"].as_array_mut().unwrap().remove(0);
        scene.write_plan(&plan);
        let tried = scene.run(&["apply", &path, "--dry-run"]);
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(!tried.status.success() && said.contains("drift"), "{said}");
    });
}
