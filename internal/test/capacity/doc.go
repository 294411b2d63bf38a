// Package capacity tests that a real daemon keeps its data directory within --capacity while
// engines write at full speed, serves no wrong byte meanwhile, and knows what everything takes, also after it
// was killed.
//
// With KV3FS_SOAK the capacity is 1 GiB, and many files are a million.
package capacity
