// Package conformance holds no code, only a test suite: it starts the real
// kv3fs serve on real mounts and runs the compatibility cases of the protocol
// specification (chapter 11) and the requirements of the known clients against
// it, through the C library and through package usrbio.
//
// table_test.go lists every number and what shows it; TestEveryNumberHasATest
// keeps the list whole. One case: go test -run 'TestCase/^27$' ./internal/test/conformance
//
// It needs /dev/fuse, root for what concerns several users, a C compiler and
// make. What is missing is skipped with the words NOT TESTED; with
// KV3FS_REQUIRE_MOUNTS=1 that is a failure. KV3FS_BINARY names a binary to test
// in place of one built from this tree, KV3FS_TEST_DIR a directory for the data
// directories, which should be on the file system of interest.
package conformance
