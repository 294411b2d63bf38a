// Package measure holds what every benchmark of this house needs: a program that
// is started for it and surely stopped, figures in three numbers, and the name of
// the file system they are from.
package measure
