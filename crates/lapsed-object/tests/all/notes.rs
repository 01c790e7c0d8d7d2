//! Notes, marks and turns on every server that holds what it promises.

use lapsed_core::notes_conformance;
use lapsed_testbed::ObjectEngine;

use crate::fixture::Site;

notes_conformance!(seaweed, Site::new(ObjectEngine::Seaweed).notes());
notes_conformance!(azurite, Site::new(ObjectEngine::Azurite).notes());
