//! The conformance suite of `leases` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

use lapsed_core::leases_conformance;
use lapsed_testbed::steadily_async;

leases_conformance!(in_memory, crate::fixture::leases_in_memory().0);
leases_conformance!(in_a_folder, crate::fixture::leases_in_folder(), steadily_async);
