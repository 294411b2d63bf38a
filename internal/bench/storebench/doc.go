// Package storebench compares block stores with what bounds them: rings that read the
// same files, and a plain copy of memory.
//
// The contenders of a case take turns, run by run, on the same bytes and into the same
// buffers. The result of each is the median of its runs. After every run one of the
// loaded blocks is checked.
package storebench
