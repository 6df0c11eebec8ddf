// Set-up of the process before it opens a file or starts a thread, and the end of its output.
#pragma once

namespace weft {

// Opens /dev/null in the place of each closed one of stdin, stdout and stderr. Without it a file or a socket
// could take the place, and the text for a closed stream would be written into it.
void OpenStandardStreams();

// From now on an exception that nothing catches prints one message and ends the process with kExitFailed. No
// destructor runs, as it might wait for other ranks; mpirun ends them.
void ReportUncaughtExceptions();

// Writes what is left of standard output. Returns `code`, or kExitFailed in place of kExitDone, with a
// message, if not all of the output could be written.
int EndOutput(int code);

}  // namespace weft
