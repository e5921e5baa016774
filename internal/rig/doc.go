// Package rig has, in the packages below it, what only tests, benchmarks and the demo of the command use:
// servers that they start, a proxy with faults, child processes, checks for leaks. No released package imports
// any of it.
package rig
