// Package dashboard is the page that people look at: static files, which ask the API of the daemon that has served them and
// nothing else.
//
// The files are shown to everybody who reaches the address: they have no secrets, and what they show comes from the API, for which
// the page asks for the token where there is one. A strict Content-Security-Policy holds: no script but the files', no markup made from
// texts (Trusted Types), no other address.
//
// static/uplot is vendored: VENDORED.txt there says which version, and the hash of each file.
package dashboard
