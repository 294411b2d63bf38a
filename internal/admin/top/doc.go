// Package top shows what a daemon tells of itself in a terminal, as package api has it.
//
// What is shown is lines of texts with styles, which are made from the answers without a terminal; only the screen knows one. Names are
// what clients make them: Visible makes each text fit for a terminal before it gets there, and what is drawn are cells, not
// the text itself.
package top
