//! The disk that the simulation cuts the power of.

use lapsed_embedded::StoreFile;
use lapsed_sim::disk::{Disk, Keep, Lies};
use lapsed_sim::random::SimRandom;

#[test]
fn only_what_was_synced_survives() {
    let disk = Disk::new(Lies::Never);
    let file = disk.handle(StoreFile::Database);
    file.set_len(2_048).unwrap();
    file.write(0, &[1; 512]).unwrap();
    file.sync_data().unwrap();
    file.write(0, &[2; 1_024]).unwrap();
    disk.cut_power(Keep::Nothing);
    assert!(file.len().is_err(), "the old handle is dead");
    let mut found = [0; 1_024];
    disk.handle(StoreFile::Database).read(0, &mut found).unwrap();
    assert_eq!((found[0], found[600]), (1, 0));
}

#[test]
fn a_disk_that_lies_loses_what_it_said_was_synced() {
    let disk = Disk::new(Lies::Always);
    let file = disk.handle(StoreFile::Database);
    file.set_len(512).unwrap();
    file.sync_data().unwrap();
    disk.cut_power(Keep::Nothing);
    assert_eq!(disk.handle(StoreFile::Database).len().unwrap(), 0);
}

/// What is read after a power failure is what was kept, also where writes overlap.
#[test]
fn after_a_power_failure_reads_see_exactly_what_survived() {
    let (disk, random) = (Disk::new(Lies::Never), SimRandom::new(3));
    let all = |disk: &Disk| {
        let mut found = vec![0; disk.handle(StoreFile::Database).len().unwrap() as usize];
        disk.handle(StoreFile::Database).read(0, &mut found).unwrap();
        found
    };
    disk.handle(StoreFile::Database).set_len(8_192).unwrap();
    for round in 0..200 {
        let file = disk.handle(StoreFile::Database);
        for _ in 0..random.between(1, 6) {
            let data = vec![random.any() as u8; random.between(1, 2_000) as usize];
            file.write(random.between(0, 6_000), &data).unwrap();
        }
        if random.odds(0.3) {
            file.sync_data().unwrap();
            file.write(100, &[9; 900]).unwrap();
        }
        disk.cut_power(if round % 3 == 0 { Keep::Nothing } else { Keep::Some(random.any()) });
        let seen = all(&disk);
        // A change of the length makes the disk read everything again from what survived.
        disk.handle(StoreFile::Database).set_len(8_192).unwrap();
        disk.cut_power(Keep::Nothing);
        assert!(seen == all(&disk), "round {round}");
    }
}
