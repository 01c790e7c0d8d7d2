//! The disk that the simulation cuts the power of.

use lapsed_sim::disk::{Disk, Keep};

#[test]
fn only_what_was_synced_survives() {
    let disk = Disk::new(false);
    let file = disk.handle();
    file.set_len(2_048).unwrap();
    file.write(0, &[1; 512]).unwrap();
    file.sync_data().unwrap();
    file.write(0, &[2; 1_024]).unwrap();
    disk.cut_power(Keep::Nothing);
    assert!(file.len().is_err(), "the old handle is dead");
    let mut found = [0; 1_024];
    disk.handle().read(0, &mut found).unwrap();
    assert_eq!((found[0], found[600]), (1, 0));
}

#[test]
fn a_disk_that_lies_loses_what_it_said_was_synced() {
    let disk = Disk::new(true);
    let file = disk.handle();
    file.set_len(512).unwrap();
    file.sync_data().unwrap();
    disk.cut_power(Keep::Nothing);
    assert_eq!(disk.handle().len().unwrap(), 0);
}
