// Package ringbench measures the rings of a daemon beside the two other ways to
// the same bytes: the mount, and plain I/O on the data directory.
//
// A ratio between numbers of different minutes says little, so the contenders of
// a case take turns, run by run, on the same files with the same number of
// requests in flight, and each is judged by the median of its runs. After every
// run one block of what it moved is checked.
package ringbench
