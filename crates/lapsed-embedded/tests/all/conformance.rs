//! The conformance suite of `registry` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

use lapsed_core::registry_conformance;
use lapsed_testbed::steadily_async;

registry_conformance!(in_memory, crate::fixture::in_memory().0);
registry_conformance!(in_a_folder, crate::fixture::in_folder(), steadily_async);
