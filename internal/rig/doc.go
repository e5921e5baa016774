// Package rig holds, in the packages below it, what only tests, benchmarks and the demo of the command use:
// servers that they start, a proxy with faults, processes of their own, a watch for leaks. Nothing that ships imports any of it.
package rig
