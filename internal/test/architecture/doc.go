// Package architecture tests the rules for the source tree: which package may import
// which, and what code and words must not contain. It has no code of its own.
package architecture
