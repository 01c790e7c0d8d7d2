//! The conformance suite of `sessions` on the embedded store: in memory under a clock that is moved
//! by hand, and in a folder under the real one.

use lapsed_core::sessions_conformance;
use lapsed_testbed::steadily_async;

sessions_conformance!(in_memory, crate::fixture::sessions_in_memory().0);
sessions_conformance!(in_a_folder, crate::fixture::sessions_in_folder(), steadily_async);
