// Package pagesoak holds the test of the page service that nothing else can make:
// engines as vLLM and SGLang, on a real mount, share page files far too small for
// what they want to keep, while the service is killed again and again. Whoever was
// told a page reads it through a ring, within the lease, and looks at every byte.
//
// KV3FS_SOAK=5m runs it as long; KV3FS_SEED repeats a run's choices.
package pagesoak
