// Package ringbench compares the rings of a daemon with the two other ways to read and
// write the same files: the mount, and plain I/O on the data directory.
//
// A ratio of figures from different minutes says little. So the contenders of a case take
// turns, run by run, on the same files with the same number of requests in flight, and
// the median of each one's runs counts. After every run one block of what it moved is
// checked.
package ringbench
