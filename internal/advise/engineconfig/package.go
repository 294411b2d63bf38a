package engineconfig

// PackageKind determines how to look for a package.
type PackageKind int

// Kinds of packages.
const (
	PythonModule  PackageKind = iota // importable: python3 -c "import NAME"
	SharedLibrary                    // found by the dynamic linker: NAME is the file name
	Command                          // found in PATH
)

// Package is something that must be installed.
type Package struct {
	Kind     PackageKind
	Name     string // module, library file or command
	Install  string // how to get it
	Optional string // what happens without it; "" if the engine does not work without it
}

func pythonClient(optional string) Package {
	return Package{PythonModule, "hf3fs_fuse.io", "make wheel && pip install dist/hf3fs_py_usrbio-*.whl   # in kv3fs's source; it carries the library", optional}
}

func cLibrary() Package {
	return Package{SharedLibrary, "libhf3fs_api_shared.so", "make install PREFIX=/usr   # in kv3fs's source; engines look in /usr/lib", ""}
}

func pip(module, distribution string) Package {
	return Package{PythonModule, module, "pip install " + distribution, ""}
}
