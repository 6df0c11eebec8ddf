# cmake -DOUTPUT=file.cc -DFUNCTION=Name -DHEADER=path.h "-DINPUTS=a;b" -P EmbedText.cmake
# Writes the C++ source of weft::Name(), which HEADER declares and which returns the concatenated inputs.
set(bytes "")
foreach(input IN LISTS INPUTS)
  file(READ ${input} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  # Lines of 8 bytes keep the file readable.
  string(REGEX REPLACE "((0x..,)(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?)" "\\1\n" hex "${hex}")
  string(APPEND bytes "${hex}")
endforeach()
file(WRITE ${OUTPUT} "#include \"${HEADER}\"

namespace weft {
namespace {
constexpr unsigned char k${FUNCTION}[] = {
${bytes}};
}  // namespace

std::string_view ${FUNCTION}() { return {reinterpret_cast<const char*>(k${FUNCTION}), sizeof(k${FUNCTION})}; }

}  // namespace weft
")
