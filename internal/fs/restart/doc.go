// Package restart keeps, in a directory of a tmpfs, what a daemon must know of the one before
// it, so that clients do not notice that there was another one.
//
// The state is of one boot of the kernel, one data directory and one format. Anything else, and
// what is damaged or cut short, is thrown away when the directory is opened or when its owner
// reads it: the daemon then starts afresh, as if there had been no other.
//
// Each part of the daemon owns its files: small ones that are replaced as a whole (Read, Write),
// logs (OpenLog), and files of its own making at Path.
package restart
