// Package soak tests that the memory of a real daemon stays bounded, with many
// files and with large buffers.
package soak
