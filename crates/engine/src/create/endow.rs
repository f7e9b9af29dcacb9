//! The descriptors that a keeper inherits, by role.
//!
//! The creator opens them. The plan lists their roles in the order of their numbers. The list is made
//! from this value, so no two descriptors can be swapped.

use std::os::fd::BorrowedFd;

use tare_control::{Role, TreeSource};

use crate::holdings::{Place, Tree};

/// The descriptors for a keeper.
#[derive(Debug, Default)]
pub struct Endowment<'a> {
    fds: Vec<(Role, BorrowedFd<'a>)>,
    trees: u16,
}

impl<'a> Endowment<'a> {
    pub fn give(&mut self, role: Role, fd: BorrowedFd<'a>) {
        self.fds.push((role, fd));
    }

    /// Gives the mount of a tree, if it has one, and returns how the plan names the tree.
    pub fn give_tree(&mut self, tree: &'a Tree) -> TreeSource {
        match &tree.place {
            Place::Mount(mount) => {
                let number = self.trees;
                self.trees += 1;
                self.give(Role::Tree(number), std::os::fd::AsFd::as_fd(mount));
                TreeSource::Inherited(number)
            }
            Place::HostPath(path) => TreeSource::HostPath(path.clone()),
        }
    }

    /// Returns the roles in the order of the descriptors' numbers.
    pub fn roles(&self) -> Vec<Role> {
        self.fds.iter().map(|(role, _)| *role).collect()
    }

    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'a>> {
        self.fds.iter().map(|(_, fd)| *fd)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn each_descriptor_keeps_its_role_and_each_mounted_tree_its_number() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let mounted = || Tree {
            place: Place::Mount(null.as_fd().try_clone_to_owned().unwrap()),
            is_directory: true,
        };
        let (root, volume) = (mounted(), mounted());
        let by_path = Tree { place: Place::HostPath(b"/srv".to_vec()), is_directory: true };
        let mut endowment = Endowment::default();
        endowment.give(Role::Listener, null.as_fd());
        assert_eq!(endowment.give_tree(&root), TreeSource::Inherited(0));
        assert_eq!(endowment.give_tree(&by_path), TreeSource::HostPath(b"/srv".to_vec()));
        assert_eq!(endowment.give_tree(&volume), TreeSource::Inherited(1));
        let roles = [Role::Listener, Role::Tree(0), Role::Tree(1)];
        assert_eq!((endowment.roles(), endowment.fds().count()), (roles.to_vec(), 3));
    }
}
