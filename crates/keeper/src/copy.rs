//! The parts of `tare cp` that run in the box, as the box's user.
use tare_control::Unpack;
pub fn pack(_path: &[u8], _name: &[u8]) -> u8 {
    1
}
pub fn unpack(_unpack: &Unpack) -> u8 {
    1
}
