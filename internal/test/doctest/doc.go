// Package doctest runs the commands in docs/engines, and those of the README that are
// marked, and compares their output with the pages. It contains only tests.
//
// The words after the fence of a block say which of three kinds it is. The test runs a
// block marked "sh tried". It cannot run one marked "sh untried"; the text beside the
// block says why. A block marked "text output" shows what the tried block before it
// prints, where "..." stands for any text, or on a line by itself for any lines.
//
// The README runs first. The other pages, each in a shell of its own, use what it
// installs and starts. All of them run in a sandbox with its own file system, processes,
// network and /dev/shm (testdata/sandbox.sh), so that pages can use /mnt/3fs and port
// 18000 and leave nothing behind. A page names in a comment what stands in for the
// engine:
//
//	<!-- stand-ins: python:lmcache command:ninja -->
//
// This makes an empty Python module and a command that does nothing, for the doctor to
// find.
package doctest
