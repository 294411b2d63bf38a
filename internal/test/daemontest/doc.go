// Package daemontest starts a real kv3fs for tests.
//
// A package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }
//
// and a test asks for a daemon in one of three ways:
//
//	d := daemontest.Serve(t, "--deadline", "5s")                  // until the test ends
//	d := daemontest.ServeWith(t, daemontest.Options{Mount: path}) // the same, with more to choose
//	d := daemontest.Shared(t)                                     // one for all tests of the package
//
// The mount is d.Mount and the directory behind it d.Data. A test can also Kill, Start,
// Freeze, Thaw and Signal its daemon. When the test ends, the daemon must stop in order,
// leave no mount and have nothing like a panic in its log.
//
// Main also fails the package if its tests leave goroutines, descriptors, mappings or
// mounts behind.
//
// Where nothing can be mounted a test is skipped with the words NOT TESTED; with
// KV3FS_REQUIRE_MOUNTS=1 it fails. KV3FS_BINARY names a program to run in place of one
// built from this tree, KV3FS_TEST_DIR a directory for data directories and mount points.
package daemontest
