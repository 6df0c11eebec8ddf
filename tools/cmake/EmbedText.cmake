# cmake -DOUTPUT=file.cc "-DINPUTS=a;b" -P EmbedText.cmake
# Writes the C++ source of weft::EmbeddedText(), which returns the concatenated inputs.
set(bytes "")
foreach(input IN LISTS INPUTS)
  file(READ ${input} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  # Lines of 8 bytes keep the file readable.
  string(REGEX REPLACE "((0x..,)(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?(0x..,)?)" "\\1\n" hex "${hex}")
  string(APPEND bytes "${hex}")
endforeach()
file(WRITE ${OUTPUT} "#include \"weft/train/embedded_text.h\"

namespace weft {
namespace {
constexpr unsigned char kText[] = {
${bytes}};
}  // namespace

std::string_view EmbeddedText() { return {reinterpret_cast<const char*>(kText), sizeof(kText)}; }

}  // namespace weft
")
