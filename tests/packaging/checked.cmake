# checked(<command>...): runs a command of a packaging test; its output goes into `output`, and a failure ends the test with it.
function(checked)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# expect(<output> <text>): ends the test unless the output is exactly `text`.
function(expect output text)
  if(NOT output STREQUAL text)
    message(FATAL_ERROR "expected:\n${text}\ngot:\n${output}")
  endif()
endfunction()
