// Package storebench measures block stores beside what bounds them: rings that read
// the same files, and a plain copy of memory.
//
// The contenders of a case take turns, run by run, on the same bytes and into the
// same buffers, and each is judged by the median of its runs. After every run one
// block of what it loaded is checked.
package storebench
