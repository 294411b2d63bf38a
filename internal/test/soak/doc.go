// Package soak holds tests of what only numbers show: a real daemon under many
// files and large buffers.
package soak
