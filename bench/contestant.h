// Request loop of one rank of a program that the suite measures.
//
// The suite writes a request on a socket, one line of "<verb> <key>=<value> ...". The rank answers with one
// line of JSON: lists of numbers by name. Between requests a rank sleeps in read(), so that programs that are
// measured interleaved do not disturb each other. `bench/peers/contestant.py` is the same in Python.
//
// Uses only the standard library, because peers are built without weft.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace weft::bench {

using Request = std::map<std::string, std::string>;
using Reply = std::map<std::string, std::vector<double>>;
using Handler = std::function<Reply(const Request&)>;

// The path of the suite's socket, from the environment variable WEFT_BENCH_SOCKET.
// Errors: if it is not set, the process ends with a message.
std::string SocketPath();

// Answers each request with the handler of its verb until the suite closes the connection.
// Errors: a missing socket or an unknown verb ends the process with a message.
void Serve(int rank, const std::map<std::string, Handler>& handlers);

// Returns the value of a key.
// Errors: if the key is missing, or its value is not an integer, the process ends with a message.
int IntegerOf(const Request& request, const std::string& key);
std::string StringOf(const Request& request, const std::string& key);

}  // namespace weft::bench
