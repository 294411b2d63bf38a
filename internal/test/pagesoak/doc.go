// Package pagesoak tests the page service under load while it is killed again and again.
// Engines like vLLM and SGLang, on a real mount, share page files that are far too small
// for their keys. A reader that was told a page reads it through a ring, within the lease,
// and checks every byte.
//
// KV3FS_SOAK=5m sets the length of a run; KV3FS_SEED repeats the choices of a run.
package pagesoak
