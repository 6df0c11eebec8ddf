// A rank of a program that the suite measures: it waits on the suite's socket and does what it is asked.
//
// The suite writes a line, "<verb> <key>=<value> ..."; the rank answers with a line of JSON: lists of numbers
// by name. Between requests a rank sleeps in read(), so that programs which are measured in turns do not
// disturb each other. The end of the connection ends Serve. `bench/peers/contestant.py` is the same in
// Python.
//
// Needs nothing but the standard library: peers are built without weft.
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

// Answers until the suite hangs up, each verb by its handler. Ends the process, with a message, where there
// is no socket (the environment's WEFT_BENCH_SOCKET names it) or no such verb.
void Serve(int rank, const std::map<std::string, Handler>& handlers);

// A key's value. Ends the process, with the key's name, where it is missing or no number.
int IntegerOf(const Request& request, const std::string& key);
std::string StringOf(const Request& request, const std::string& key);

}  // namespace weft::bench
