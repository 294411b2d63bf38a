// Package checksums tests a daemon that keeps checksums, as its clients and the disk see it: whatever
// anybody does to its files is no damage, and what is damaged is not served.
package checksums
