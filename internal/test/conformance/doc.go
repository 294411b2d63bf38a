// Package conformance tests kv3fs for compatibility with 3FS. It holds no other code.
// The tests start the real kv3fs serve on real mounts and run the cases of the protocol
// specification (chapter 11) and the requirements of the known clients against it,
// through the C library and through package usrbio.
//
// table_test.go lists every number with its tests; TestEveryNumberHasATest checks that
// none is missing. One case: go test -run 'TestCase/^27$' ./internal/test/conformance
//
// The tests need /dev/fuse, root where several users take part, a C compiler and make.
// A test that cannot run is skipped with the words NOT TESTED; with
// KV3FS_REQUIRE_MOUNTS=1 it fails. KV3FS_BINARY names a binary to test in place of one
// built from this tree. KV3FS_TEST_DIR names a directory for the data directories; choose
// one on the file system to test.
package conformance
