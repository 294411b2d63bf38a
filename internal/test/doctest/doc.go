// Package doctest runs what docs/engines tells people to type. It has no code of
// its own.
//
// Every fenced block of a page there is one of three, by the words after its
// fence: "sh tried", which the test runs; "sh untried", which it cannot run, and
// the text beside it says why; "text output", what the tried block before it
// prints. "..." stands for anything, on a line of its own for any lines.
//
// The README comes first, and what it installs and starts is there for the other
// pages, each of which has a shell of its own. All of them run in a room apart,
// with file system, processes, network and /dev/shm of its own
// (testdata/room.sh), so that a page means /mnt/3fs and port 18000 when it says
// so, and nothing is left behind. A page names what stands in for the engine in a
// comment:
//
//	<!-- stand-ins: python:lmcache command:ninja -->
//
// an empty Python module and a command that does nothing, for the doctor to find.
package doctest
